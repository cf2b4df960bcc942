"""Datasets of mosaicml-streaming: read where they lie, and written so that it reads them."""

from headrace.storage.mds._dataset import MdsDataset
from headrace.storage.mds._fields import ENCODING_KEY, FORMAT_KEY
from headrace.storage.mds._index import INDEX_NAME, Index, decode_index
from headrace.storage.mds._publish import check_mds_mode, commit_mds
from headrace.storage.mds._writer import (
    DEFAULT_HASHES,
    FileEntry,
    MdsShardEntry,
    MdsWriter,
    check_columns,
    check_writing,
)

__all__ = [
    "DEFAULT_HASHES",
    "ENCODING_KEY",
    "FORMAT_KEY",
    "INDEX_NAME",
    "FileEntry",
    "Index",
    "MdsDataset",
    "MdsShardEntry",
    "MdsWriter",
    "check_columns",
    "check_mds_mode",
    "check_writing",
    "commit_mds",
    "decode_index",
]
