"""Read datasets of mosaicml-streaming in place, and write datasets that it can read."""

from headrace.storage.mds.dataset import MdsDataset
from headrace.storage.mds.fields import ENCODING_KEY, FORMAT_KEY
from headrace.storage.mds.index import Index, decode_index
from headrace.storage.mds.publish import check_mds_mode, commit_mds
from headrace.storage.mds.writer import (
    DEFAULT_HASHES,
    FileEntry,
    MdsShardEntry,
    MdsWriter,
    check_columns,
    check_writing,
)
from headrace.storage.source.kinds import MDS_INDEX_NAME

__all__ = [
    "DEFAULT_HASHES",
    "ENCODING_KEY",
    "FORMAT_KEY",
    "MDS_INDEX_NAME",
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
