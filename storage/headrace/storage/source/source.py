"""The seam between those who read datasets and the layouts that datasets are stored in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.source.stretches import Stretches
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import Store


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """What reading all blocks of a shard does not show.

    Attributes:
        shard: Its name.
        problem: What is wrong outside of its blocks, or `None`.
        unprotected_count: Samples in which a changed byte would not be noticed.
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
        """Where the dataset is, without credentials."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that name its content."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of every batch."""

    @property
    def sample_count(self) -> int:
        """Samples."""

    @property
    def shard_count(self) -> int:
        """Shards."""

    @property
    def block_count(self) -> int:
        """Blocks."""

    @property
    def raw_bytes(self) -> int:
        """Bytes of the samples."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of the shards in the store."""

    @property
    def shard_sample_counts(self) -> NDArray[np.int64]:
        """``(shards,) int64``, not to be written to; may hold zeros."""

    @property
    def shard_raw_bytes(self) -> NDArray[np.int64]:
        """``(shards,) int64``, not to be written to."""

    def stretches(self) -> Stretches:
        """Return how its samples are cut into blocks, for an order to keep blocks whole.

        Not to be written to; a thousand shards take microseconds, no store is asked.
        """

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the blocks of samples.

        Args:
            sample_ids: ``(n,)`` in ``[0, sample_count)``, in any order, repeats allowed.

        Returns:
            Block ordinals and offsets of the samples in their blocks, ``(n,) int64`` each.

        Raises:
            BadArgumentError: An id is outside its range.
            ManifestCorruptError: The manifest is damaged where it is needed.
        """

    def block_stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many bytes reading each block fetches, ``(n,) int64``; may be an estimate.

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
        """Read, verify and decode one block; what is damaged is read again once.

        Args:
            block: In ``[0, block_count)``.

        Returns:
            Its samples, with the dataset's schema.

        Raises:
            ShardCorruptError: Twice damaged; names shard, block and byte offset.
            ObjectNotFoundError: The shard is gone.
            StoreUnavailableError: The store cannot be reached.
        """

    def check_shard(self, shard: int) -> ShardCheck:
        """Look at what of a shard lies outside of its blocks, and at what protects these.

        Args:
            shard: In ``[0, shard_count)``.

        Raises:
            ShardCorruptError: The shard has changed since it was opened.
            ObjectNotFoundError: It is gone.
            StoreUnavailableError: The store cannot be reached.
        """

    def close(self) -> None:
        """Close the connections; the dataset cannot be read afterwards."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the operator says about how datasets are read, beside how stores are reached.

    Attributes:
        source: Name of the source, for a URL that holds several; `None` finds out.
        allow_pickle: Serve columns of pickles (as bytes; they are never unpickled here). Off by
            default: whoever unpickles such a column runs code of whoever wrote it.
        mixed_arrays: Take it that MDS arrays which state their own type or shape have any. Where
            it is off, samples that are spread over the dataset are looked at.
        table_version: Version of a table that has versions of its own (Delta); `None` is the
            current one.
    """

    source: str | None = None
    allow_pickle: bool = False
    mixed_arrays: bool = False
    table_version: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset may be.

    Attributes:
        url: As the caller wrote it, with what a store's own ``url`` leaves out.
        store: The objects under it. Whoever opens a dataset here owns it from then on.
        options: How the store was reached, for sources that need another one.
    """

    url: str
    store: Store
    options: StoreOptions = field(default_factory=StoreOptions)


class Source(Protocol):
    """A layout of datasets: a module with this constant and these two functions."""

    @property
    def MARK(self) -> str:  # noqa: N802 - a constant of the module
        """What such a dataset is known by, such as ``headrace.json``, for error messages."""

    def detect(self, place: Place) -> bool:
        """Tell by a read or two whether there is such a dataset, whole or damaged.

        Raises:
            StoreRefusedError: The store refuses.
            StoreUnavailableError: The store cannot be reached.
        """

    def open_at(
        self, place: Place, options: SourceOptions, *, fingerprint: str | None
    ) -> OpenDataset:
        """Open the dataset, of which `detect` has told that it is there.

        Args:
            place: Where; its store is closed by the dataset, or by the caller where this raises.
            options: The operator's options.
            fingerprint: The version to read, or `None` for the current one.

        Raises:
            NotADatasetError: There is no such version.
            ManifestCorruptError: The manifest is damaged or of an unknown version.
        """
