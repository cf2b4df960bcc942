"""A stage of the order: it stands before what a stream reads, and changes what comes where.

A class derives from `OrderStage` and overrides what it changes; the rest is that of what is behind
it. So products of stages are nestings, and none has a class of its own. Positions must stay a pure
function of the request and the dataset, whatever the world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.order import OrderSpec, Skips, stages_of
from headrace.server.batch.batch_writer import BatchWriter
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.readers import WholeBlocks
from headrace.server.datasets.served import Lengths, Part, Served
from headrace.server.layout.block_layout import BlockLayout
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.ranks import Dealing, Ranks
from headrace.server.plan.stream_request import Readable
from headrace.v1 import shard_service_pb2 as pb

_Stage = TypeVar("_Stage")


class OrderStage:
    """What a stream reads, behind one stage of the order.

    Args:
        inner: What it reads without the stage.

    Attributes:
        inner: The same.
    """

    def __init__(self, inner: Served) -> None:
        self.inner = inner
        self.name, self.dataset, self.windows = inner.name, inner.dataset, inner.windows
        self.memory_bytes, self.retirements = inner.memory_bytes, inner.retirements
        self.samples_an_item, self.has_pieces = inner.samples_an_item, inner.has_pieces
        self.skip_lists = inner.skip_lists

    def stage(self, kind: type[_Stage]) -> _Stage | None:
        """Return the stage of a kind that it stands behind, or is; None if there is none."""
        return self if isinstance(self, kind) else self.inner.stage(kind)

    @property
    def readable(self) -> Readable:
        """Return what requests are checked against."""
        return self.inner.readable

    @property
    def raw_bytes(self) -> int:
        """Return the raw bytes of all samples that its order may have."""
        return self.inner.raw_bytes

    @property
    def epoch_bytes(self) -> int:
        """Return the raw bytes of what an epoch reads."""
        return self.inner.epoch_bytes

    @property
    def most_looked_up(self) -> int:
        """Return the most samples whose positions one call may ask for."""
        return self.inner.most_looked_up

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return an object that finds samples by their positions."""
        return self.inner.finder(spec, skips)

    def unskipped_finder(self, spec: OrderSpec) -> Finder:
        """Return the same for the order without skips."""
        return self.inner.unskipped_finder(spec)

    def lengths(self, *, field: str, cost: str = "") -> Lengths:
        """Return the lengths of samples, or their costs."""
        return self.inner.lengths(field=field, cost=cost)

    def dealing(self, order: OrderSpec, ranks: Ranks, finder: Finder) -> Dealing | None:
        """Return an object that deals samples to ranks; None if they are dealt in order."""
        return self.inner.dealing(order, ranks, finder)

    def blocks(self, cache: BlockCache) -> WholeBlocks:
        """Return its blocks for a stream."""
        return self.inner.blocks(cache)

    def writer(self, columns: Sequence[WireColumn]) -> Callable[[BlockLayout], BatchWriter]:
        """Return what writes batches with these columns, of blocks of a layout."""
        return self.inner.writer(columns)

    def parts(self, sample_ids: NDArray[np.int64]) -> Iterator[Part]:
        """Split the samples of a batch by dataset."""
        return self.inner.parts(sample_ids)

    def shown_ids(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return items as a batch shows them."""
        return self.inner.shown_ids(sample_ids)

    def shown_samples(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids of the samples that are read, as a batch shows them."""
        return self.inner.shown_samples(sample_ids)

    def joined_ids(
        self, indices: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the ids of samples that are named by dataset and id, or by id alone."""
        return self.inner.joined_ids(indices, sample_ids)

    def tally(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count items by dataset of a mixture."""
        return self.inner.tally(sample_ids)

    def describe(self, start: pb.StreamStart) -> None:
        """Fill in its part of the first message."""
        self.inner.describe(start)


class NamedStage(OrderStage):
    """A stage that tokens name.

    Args:
        inner: What it reads without the stage.
        name: The name of the stage in tokens.
        text: What they say about it.
    """

    def __init__(self, inner: Served, name: str, text: str) -> None:
        super().__init__(inner)
        self._own = stages_of(**{name: text})

    @cached_property
    def readable(self) -> Readable:
        """Return what requests are checked against."""
        readable = self.inner.readable
        return replace(readable, stages=readable.stages + self._own)
