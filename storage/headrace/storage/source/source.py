"""The interface between readers of datasets and the layouts that datasets are stored in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.source.listed_kinds import ListedKinds
from headrace.storage.source.prefix_search import Search, search_starts
from headrace.storage.source.stretches import Stretches
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.outer_store import check_prefix
from headrace.storage.store.store import Store


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """What is known about a shard beyond its blocks.

    Attributes:
        shard: The name of the shard.
        problem: What is wrong outside of its blocks, or `None`.
        unprotected_count: The number of samples in which a changed byte would not be noticed.
    """

    shard: str
    problem: str | None = None
    unprotected_count: int = 0


class OpenDataset(Protocol):
    """One version of a dataset, open for reading, whatever its layout.

    Safe to use from several threads. The block is the unit of reading: consecutive samples that
    are fetched and verified together; blocks are numbered over the whole dataset in the order of
    their samples.
    """

    @property
    def url(self) -> str:
        """The URL of the dataset, without credentials."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that identify its content."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""

    @property
    def sample_count(self) -> int:
        """The number of samples."""

    @property
    def shard_count(self) -> int:
        """The number of shards."""

    @property
    def block_count(self) -> int:
        """The number of blocks."""

    @property
    def raw_bytes(self) -> int:
        """The size of the samples in bytes."""

    @property
    def stored_bytes(self) -> int:
        """The size of the shards in the store, in bytes."""

    @property
    def shard_sample_counts(self) -> NDArray[np.int64]:
        """``(shards,) int64``: samples per shard, read-only; may contain zeros."""

    @property
    def shard_raw_bytes(self) -> NDArray[np.int64]:
        """``(shards,) int64``: raw bytes per shard, read-only."""

    def stretches(self) -> Stretches:
        """Return how its samples are cut into blocks, so that orders can keep blocks whole.

        The arrays are read-only. A thousand shards take microseconds, and no store is read.
        """

    def locate(
        self, sample_ids: NDArray[np.int64], *, search: Search = search_starts
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the blocks of samples.

        Args:
            sample_ids: ``(n,)`` in ``[0, sample_count)``, in any order, repeats allowed.
            search: A faster replacement for `search_starts`, if there is one.

        Returns:
            Block ordinals and offsets of the samples in their blocks, ``(n,) int64`` each.

        Raises:
            BadArgumentError: An id is outside its range.
            ManifestCorruptError: A needed part of the manifest is damaged.
        """

    def block_stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored bytes that reading each block fetches, or estimates, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """

    def block_raw_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the raw bytes of the samples of each block, ``(n,) int64``; may be an estimate.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """

    def block_first_samples(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the id of the first sample of each block, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """

    def block_sample_range(self, block: int) -> tuple[int, int]:
        """Return the sample ids ``[first, last)`` of a block.

        Raises:
            BadArgumentError: The ordinal is outside ``[0, block_count)``.
        """

    def read_block(self, block: int) -> pa.RecordBatch:
        """Read, verify and decode one block; a damaged block is read once more.

        Args:
            block: In ``[0, block_count)``.

        Returns:
            Its samples, with the dataset's schema.

        Raises:
            ShardCorruptError: It was damaged twice; names shard, block and byte offset.
            ObjectNotFoundError: The shard is missing.
            StoreUnavailableError: The store cannot be reached.
        """

    def check_shard(self, shard: int) -> ShardCheck:
        """Check a shard outside of its blocks, and whether checksums protect its blocks.

        Args:
            shard: In ``[0, shard_count)``.

        Raises:
            ShardCorruptError: The shard has changed since it was opened.
            ObjectNotFoundError: The shard is missing.
            StoreUnavailableError: The store cannot be reached.
        """

    def close(self) -> None:
        """Close the connections; the dataset cannot be read afterwards."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options for reading datasets, besides the options of stores.

    Attributes:
        source: The name of the source, for a URL with several; `None` detects it.
        allow_pickle: Read columns of pickles, as bytes; they are never unpickled here. Off by
            default, because unpickling such a column can run arbitrary code of its writer.
        mixed_arrays: Assume that MDS arrays that store their own type or shape may have any. If
            this is off, samples from across the dataset are read to find out.
        missing_as_null: Read a column that some Parquet files of a folder lack, as null for their
            samples. Off by default, because a column may also be missing by mistake.
        table_version: The version of a table with its own versions (Delta); `None` means the
            current one.
        index_of: The URL of the files that a stored index is of; `None` if it lies with them.
        table_prefixes: URLs of folders below which the metadata of an Iceberg or Delta table may
            name files; otherwise all must lie below the table's location.
    """

    source: str | None = None
    allow_pickle: bool = False
    mixed_arrays: bool = False
    missing_as_null: bool = False
    table_version: int | None = None
    index_of: str | None = None
    table_prefixes: tuple[str, ...] = field(default=(), metadata={"option": "--table-prefix"})

    def __post_init__(self) -> None:
        for prefix in self.table_prefixes:
            check_prefix(prefix)


@dataclass(frozen=True, slots=True)
class Place:
    """A place where a dataset may be.

    Attributes:
        url: The URL as the caller wrote it, including parts that a store's ``url`` leaves out.
        store: The store of the objects under it. A dataset opened here owns it from then on.
        options: The options of the store, for sources that need another one.
        kinds: What a listing shows, which the sources share.
    """

    url: str
    store: Store
    options: StoreOptions = field(default_factory=StoreOptions)
    kinds: ListedKinds = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", ListedKinds(self.store))


class Source(Protocol):
    """A layout of datasets: a module with this constant and these two functions."""

    @property
    def MARK(self) -> str:  # noqa: N802 - a constant of the module
        """What identifies such a dataset, such as ``headrace.json``, for error messages."""

    def detect(self, place: Place) -> bool:
        """Return whether there is such a dataset, intact or damaged, after few requests.

        Raises:
            StoreRefusedError: The store refuses.
            StoreUnavailableError: The store cannot be reached.
        """

    def open_at(
        self, place: Place, options: SourceOptions, *, fingerprint: str | None
    ) -> OpenDataset:
        """Open a dataset that `detect` has found.

        Args:
            place: The place; its store is closed by the dataset, or by the caller if this raises.
            options: The operator's options.
            fingerprint: The version to read, or `None` for the current one.

        Raises:
            NotADatasetError: There is no such version.
            ManifestCorruptError: The manifest is damaged or of an unknown version.
        """


Progress = Callable[[int, int], None]
"""Is called with the number of files read and of all files, by the thread that opens a dataset."""


@dataclass(frozen=True, slots=True)
class Index:
    """What a source reads before the first sample, to be stored.

    Attributes:
        url: The URL of the source, without credentials.
        fingerprint: 32 hexadecimal digits of its version.
        sample_count: The number of its samples.
        content: The bytes to store.
    """

    url: str
    fingerprint: str
    sample_count: int
    content: bytes


class IndexedSource(Source, Protocol):
    """A layout of datasets whose index can be stored: a module with these functions too."""

    def make_index(
        self, place: Place, options: SourceOptions, *, progress: Progress | None
    ) -> Index:
        """Read the index of a dataset that `detect` has found.

        Args:
            place: The place; its store stays open.
            options: The operator's options.
            progress: Called while files are read.

        Raises:
            ManifestCorruptError: The dataset is damaged.
            ShardCorruptError: A file is damaged, or is being written right now.
        """

    def open_index(
        self, content: bytes, place: Place, options: SourceOptions, *, where: str
    ) -> OpenDataset:
        """Open a dataset by its index.

        Args:
            content: The index.
            place: The place of its files, whose store the dataset then owns.
            options: The operator's options.
            where: The place of the index, for errors.

        Raises:
            ManifestCorruptError: The index is damaged.
            ShardCorruptError: A file has changed.
            ObjectNotFoundError: A file is gone.
        """
