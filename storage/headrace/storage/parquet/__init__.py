"""Parquet files as datasets, where they lie: a file is a shard, a row group is a block."""

from headrace.storage.parquet._build import LARGE_ROW_GROUP_BYTES
from headrace.storage.parquet._dataset import ParquetDataset
from headrace.storage.parquet._index import ParquetIndex
from headrace.storage.parquet._index_codec import INDEX_VERSION, decode_index, encode_index
from headrace.storage.parquet._open import open_parquet
from headrace.storage.parquet._source import MARK, detect, open_at

__all__ = [
    "INDEX_VERSION",
    "LARGE_ROW_GROUP_BYTES",
    "MARK",
    "ParquetDataset",
    "ParquetIndex",
    "decode_index",
    "detect",
    "encode_index",
    "open_at",
    "open_parquet",
]
