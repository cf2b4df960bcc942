"""The bytes in the bucket: shards, manifests, checksums, and the stores that hold them."""

import headrace.errors  # noqa: F401 - first of all, for it refuses Windows

try:
    import pyarrow as pa  # noqa: F401 - first, for the message
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "headrace.storage needs pyarrow, which is not installed here: "
        "pip install 'headrace[storage]'",
        name="pyarrow",
    ) from error

from headrace.storage.care.compact import CompactOptions, CompactReport, compact
from headrace.storage.care.compact_shards import Compaction
from headrace.storage.care.gc import (
    DEFAULT_KEEP,
    DEFAULT_OLDER_THAN_S,
    GarbagePlan,
    collect_garbage,
    plan_gc,
)
from headrace.storage.care.repair import RepairReport, repair_manifest
from headrace.storage.care.scan import Lost
from headrace.storage.care.verify import DEFAULT_VERIFY_THREADS, Fault, verify_blocks, verify_shards
from headrace.storage.care.verify_packing import PackingFault, verify_packing
from headrace.storage.dataset.block_stream import stream_blocks
from headrace.storage.dataset.coalesced_reads import (
    MAX_RANGE_BYTES,
    ReadBlock,
    VerifiedBlocks,
    Verify,
)
from headrace.storage.dataset.commit import Mode, check_mode, commit_dataset
from headrace.storage.dataset.dataset import Dataset
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.pointer import IndexPointer
from headrace.storage.dataset.versions import DatasetVersion, list_versions
from headrace.storage.dataset.writer_notes import WriterNotes
from headrace.storage.open.indexed import store_index
from headrace.storage.open.packed import index_cost, index_packing
from headrace.storage.open.sources import index_options, open_dataset
from headrace.storage.open.trial import TRIAL_TIMEOUT_S, Trial, try_datasets
from headrace.storage.packing.pointer import PackingPointer, RowOptions, RowTable
from headrace.storage.packing.stored import StoredLengths, read_packing, read_row_counts
from headrace.storage.shard.block import BLOCK_DTYPE, BlockPlace
from headrace.storage.shard.block_cutter import BlockCutter, Cut
from headrace.storage.shard.classes import (
    CLASSES_KEY,
    MAX_CLASSES_BYTES,
    classes_in_features,
    classes_of,
    holds_classes,
    merged_classes,
    with_classes,
    without_classes,
)
from headrace.storage.shard.column_facts import FORMAT_KEY, SHAPE_AUTO, SHAPE_KEY, ColumnStats
from headrace.storage.shard.sample_bytes import sample_bytes
from headrace.storage.shard.shard_series import DEFAULT_SHARD_BYTES, ShardSeries, ShardSizes
from headrace.storage.shard.shard_writer import (
    DEFAULT_BLOCK_BYTES,
    SHARD_FOLDER,
    Compression,
    ShardEntry,
    ShardWriter,
    check_blocks,
)
from headrace.storage.shard.types import schema_texts, type_text
from headrace.storage.source.prefix_search import Search, Starts, search_starts
from headrace.storage.source.source import OpenDataset, Place, ShardCheck, Source, SourceOptions
from headrace.storage.source.stretches import Stretches
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import RetryPolicy, StoreOptions, options_with_environment
from headrace.storage.store.safe_url import HIDDEN, safe_url
from headrace.storage.store.store import ObjectEntry, ObjectWriter, PendingUpload, Store, Version
from headrace.storage.tokenizer.tokenizer import Tokenizer, load_tokenizer
from headrace.storage.where.binding import Filter, make_filter
from headrace.storage.where.evaluate import kept_bits

__all__ = [
    "BLOCK_DTYPE",
    "CLASSES_KEY",
    "DEFAULT_BLOCK_BYTES",
    "DEFAULT_KEEP",
    "DEFAULT_OLDER_THAN_S",
    "DEFAULT_SHARD_BYTES",
    "DEFAULT_VERIFY_THREADS",
    "FORMAT_KEY",
    "HIDDEN",
    "MAX_CLASSES_BYTES",
    "MAX_RANGE_BYTES",
    "SHAPE_AUTO",
    "SHAPE_KEY",
    "SHARD_FOLDER",
    "TRIAL_TIMEOUT_S",
    "BlockCutter",
    "BlockPlace",
    "ColumnStats",
    "CompactOptions",
    "CompactReport",
    "Compaction",
    "Compression",
    "Cut",
    "Dataset",
    "DatasetVersion",
    "Fault",
    "Filter",
    "GarbagePlan",
    "IndexPointer",
    "Lost",
    "Manifest",
    "Mode",
    "ObjectEntry",
    "ObjectWriter",
    "OpenDataset",
    "PackingFault",
    "PackingPointer",
    "PendingUpload",
    "Place",
    "ReadBlock",
    "RepairReport",
    "RetryPolicy",
    "RowOptions",
    "RowTable",
    "Search",
    "ShardCheck",
    "ShardEntry",
    "ShardSeries",
    "ShardSizes",
    "ShardWriter",
    "Source",
    "SourceOptions",
    "Starts",
    "Store",
    "StoreOptions",
    "StoredLengths",
    "Stretches",
    "Tokenizer",
    "Trial",
    "VerifiedBlocks",
    "Verify",
    "Version",
    "WriterNotes",
    "check_blocks",
    "check_mode",
    "classes_in_features",
    "classes_of",
    "collect_garbage",
    "commit_dataset",
    "compact",
    "holds_classes",
    "index_cost",
    "index_options",
    "index_packing",
    "kept_bits",
    "list_versions",
    "load_tokenizer",
    "make_filter",
    "merged_classes",
    "open_dataset",
    "open_store",
    "options_with_environment",
    "plan_gc",
    "read_packing",
    "read_row_counts",
    "repair_manifest",
    "safe_url",
    "sample_bytes",
    "schema_texts",
    "search_starts",
    "store_index",
    "stream_blocks",
    "try_datasets",
    "type_text",
    "verify_blocks",
    "verify_packing",
    "verify_shards",
    "with_classes",
    "without_classes",
]
