"""Read Parquet files in place as datasets: a file is a shard, a row group is a block."""

from headrace.storage.parquet.build import LARGE_ROW_GROUP_BYTES
from headrace.storage.parquet.dataset import ParquetDataset
from headrace.storage.parquet.index import ParquetIndex
from headrace.storage.parquet.index_codec import INDEX_VERSION, decode_index, encode_index
from headrace.storage.parquet.open import open_parquet
from headrace.storage.parquet.source import MARK, detect, open_at

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
