"""The interface of what a stream reads: one dataset, or a mixture of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.order import OrderSpec, Skips
from headrace.server.batch.batch_writer import BatchWriter
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.readers import WholeBlocks
from headrace.server.cache.source import Source
from headrace.server.datasets.versions import Retirement
from headrace.server.layout.block_layout import BlockLayout
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.plan.compiled import Locator
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.job_windows import JobWindows
from headrace.server.plan.ranks import Dealing, Ranks
from headrace.server.plan.skip_lists import Lists
from headrace.server.plan.stream_request import Readable
from headrace.storage import OpenDataset
from headrace.v1 import shard_service_pb2 as pb

_Stage = TypeVar("_Stage")

MOST_LOOKED_UP = 4096
"""The most samples whose positions one call may ask for: in a mixture, each takes about a
millisecond for each pass over its dataset."""


class Lengths(Protocol):
    """The stored lengths of the samples of a dataset."""

    @property
    def digest(self) -> str:
        """Return the digest of all."""

    def of_samples(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of samples."""


class StoredSamples(Locator, Protocol):
    """The places of samples, and their total size."""

    @property
    def sample_count(self) -> int:
        """The number of all samples."""

    @property
    def raw_bytes(self) -> int:
        """The size of all samples in bytes."""

    @property
    def stored_bytes(self) -> int:
        """The size of all samples in the store, in bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The samples of a batch that belong to one dataset.

    Attributes:
        index: The dataset's index in the mixture, else 0.
        dataset: The dataset.
        source: Its blocks in the cache.
        places: ``(samples,)``: their rows in the batch, in the order of the batch.
        sample_ids: ``(samples,) int64``: their ids in the dataset.
    """

    index: int
    dataset: OpenDataset
    source: Source
    places: NDArray[np.intp]
    sample_ids: NDArray[np.int64]


class Served(Protocol):
    """What a stream reads. Sample ids are those of its order."""

    @property
    def name(self) -> str:
        """Return its name in metrics."""

    @property
    def readable(self) -> Readable:
        """Return what requests are checked against."""

    @property
    def dataset(self) -> StoredSamples:
        """Return the places of its samples."""

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory of all samples of `dataset`, approximately."""

    @property
    def raw_bytes(self) -> int:
        """Raw bytes of all samples that its order may have."""

    @property
    def epoch_bytes(self) -> int:
        """Raw bytes of what an epoch reads, each sample as often as it is drawn."""

    @property
    def windows(self) -> JobWindows:
        """The windows of its jobs."""

    @property
    def samples_an_item(self) -> int:
        """The approximate number of samples that are read for one item of the order."""

    @property
    def retirements(self) -> tuple[Retirement, ...]:
        """Return whether all of it is still served."""

    @property
    def has_pieces(self) -> bool:
        """Whether the items of its order are made of pieces of samples."""

    @property
    def skip_lists(self) -> Lists:
        """The lists of samples to leave out that are stored for it, by digest."""

    @property
    def most_looked_up(self) -> int:
        """The most samples whose positions one call may ask for."""

    def stage(self, kind: type[_Stage]) -> _Stage | None:
        """Return the stage of a kind that it stands behind; None if it does not."""

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return an object that finds samples by their positions in the order of a spec.

        Args:
            spec: The order.
            skips: The samples to leave out.
        """

    def unskipped_finder(self, spec: OrderSpec) -> Finder:
        """Return the same for the order without skips, whoever leaves samples out."""

    def lengths(self, *, field: str, cost: str = "") -> Lengths:
        """Return the lengths of samples, or their costs.

        Args:
            field: What needs them, for the error.
            cost: The column of the costs; empty for lengths.

        Raises:
            BadArgumentError: There are none.
        """

    def dealing(self, order: OrderSpec, ranks: Ranks, finder: Finder) -> Dealing | None:
        """Return an object that deals samples to ranks; None if they are dealt in order."""

    def blocks(self, cache: BlockCache) -> WholeBlocks:
        """Return its blocks for a stream."""

    def writer(self, columns: Sequence[WireColumn]) -> Callable[[BlockLayout], BatchWriter]:
        """Return what writes batches with these columns, of blocks of a layout."""

    def describe(self, start: pb.StreamStart) -> None:
        """Fill in its part of the first message."""

    def parts(self, sample_ids: NDArray[np.int64]) -> Iterator[Part]:
        """Split the samples of a batch by dataset."""

    def shown_ids(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return sample ids as shown in a batch: ids, or pairs ``(samples, 2)``."""

    def shown_samples(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids of the samples that are read, as shown in a batch, if items are rows."""

    def joined_ids(
        self, indices: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the ids of samples that are named by dataset and id, or by id alone.

        Raises:
            BadArgumentError: A sample does not exist.
        """

    def tally(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count samples by dataset of a mixture: ``(datasets,) int64``; empty for one dataset."""


class Mixed(Served, Protocol):
    """A mixture of several members."""

    def check_global_batch_size(self, global_batch_size: int) -> None:
        """Refuse a global batch that does not fit how units are composed.

        Raises:
            BadArgumentError: It does not fit.
        """
