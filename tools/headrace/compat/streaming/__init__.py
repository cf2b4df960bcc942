"""MosaicML Streaming's interface over headrace: change ``from streaming import …`` to this.

The order of samples is headrace's, not theirs; docs/compat.md has the arguments one by one.
"""

from headrace.compat.streaming.dataframes import dataframe_to_mds
from headrace.compat.streaming.dataloader import StreamingDataLoader
from headrace.compat.streaming.dataset import StreamingDataset
from headrace.compat.streaming.stored import LocalDataset
from headrace.compat.streaming.streams import Stream, streams_registry
from headrace.compat.streaming.writers import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    TSVWriter,
    XSVWriter,
)

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "XSVWriter",
    "clean_stale_shared_memory",
    "dataframe_to_mds",
    "streams_registry",
]


def clean_stale_shared_memory() -> None:
    """Do nothing: shared memory is freed with the last process that uses it."""
