"""What a stream is sent from: one dataset, or several that are drawn from together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order import DealSpec, OrderSpec, Skips, Token
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.source import Blocks
from headrace.server.layout.packed_columns import PackedColumns
from headrace.server.plan.dealing import Dealer, Ranks
from headrace.server.plan.find_samples import Finder, Locator
from headrace.server.plan.stream_request import BatchesRequest, Readable
from headrace.v1 import shard_service_pb2 as pb

if TYPE_CHECKING:
    from headrace.server.datasets.served_dataset import Retirement, ServedDataset


class StoredSamples(Locator, Protocol):
    """Where samples lie, and how much that is."""

    @property
    def raw_bytes(self) -> int:
        """Bytes of all samples."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of all samples in the store."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Those samples of a batch that are of one dataset.

    Attributes:
        index: The dataset's index in the mixture, else 0.
        served: The dataset.
        places: ``(samples,)``: their rows in the batch, in the order of the batch.
        sample_ids: ``(samples,) int64``: their ids in the dataset.
    """

    index: int
    served: ServedDataset
    places: NDArray[np.intp]
    sample_ids: NDArray[np.int64]


class Served(Protocol):
    """What a stream is sent from. Sample ids are those of its order."""

    @property
    def name(self) -> str:
        """What metrics call it."""

    @property
    def readable(self) -> Readable:
        """What requests are checked against."""

    @property
    def dataset(self) -> StoredSamples:
        """Where its samples lie."""

    @property
    def packed(self) -> PackedColumns | None:
        """What rows hold, if the items of its order are rows of documents."""

    @property
    def samples_an_item(self) -> int:
        """How many samples are read for one item of the order, about."""

    @property
    def retirements(self) -> tuple[Retirement, ...]:
        """Whether all of it is still served."""

    def skips(self, request: BatchesRequest, token: Token | None) -> Skips | None:
        """Return the samples that a request leaves out; they must be the token's, or adopted."""

    def finder(self, spec: OrderSpec, skips: Skips | None) -> Finder:
        """Return what finds samples by their positions in the order of a spec."""

    def lengths_digest(self) -> str:
        """Return the digest of the lengths that samples are sorted by for buckets.

        Raises:
            BadArgumentError: They cannot be sorted.
        """

    def dealer(self, deal: DealSpec, order: OrderSpec, ranks: Ranks, finder: Finder) -> Dealer:
        """Return what deals samples to ranks so that costs are even.

        Raises:
            BadArgumentError: It cannot be done with this dataset.
        """

    def blocks(self, cache: BlockCache) -> Blocks:
        """Return its blocks for a stream."""

    def describe(self, start: pb.StreamStart) -> None:
        """Fill in what the first message says of it."""

    def parts(self, sample_ids: NDArray[np.int64]) -> Iterator[Part]:
        """Tell the samples of a batch apart by dataset."""

    def shown_ids(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what a batch shows of sample ids: themselves, or pairs ``(samples, 2)``."""

    def shown_samples(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what is shown of the samples that are read, if the order's items are rows."""

    def joined_ids(
        self, indices: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the ids of samples that are named by dataset and id, or by id alone.

        Raises:
            BadArgumentError: One names no sample.
        """

    def tally(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count samples by dataset of a mixture: ``(datasets,) int64``; empty for one dataset."""
