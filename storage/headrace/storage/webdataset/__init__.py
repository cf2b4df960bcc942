"""Read WebDatasets: directories of tar files whose members, grouped by name, are samples."""

from headrace.storage.webdataset.dataset import WebDataset
from headrace.storage.webdataset.source import MARK, detect, open_at, open_webdataset
from headrace.storage.webdataset.stored_index import (
    decode_stored_index,
    encode_stored_index,
    open_by_index,
)

__all__ = [
    "MARK",
    "WebDataset",
    "decode_stored_index",
    "detect",
    "encode_stored_index",
    "open_at",
    "open_by_index",
    "open_webdataset",
]
