"""Where MosaicML's users also import from: ``streaming.base``."""

from headrace.compat.streaming import (
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)

__all__ = ["LocalDataset", "MDSWriter", "Stream", "StreamingDataLoader", "StreamingDataset"]
