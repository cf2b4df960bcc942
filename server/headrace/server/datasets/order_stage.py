"""A stage of the order: it stands before what a stream reads, and changes what comes where.

A class derives from `OrderStage` and overrides what it changes; the rest is that of what is behind
it. So products of stages are nestings, and none has a class of its own. Positions must stay a pure
function of the request and the dataset, whatever the world size.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from headrace.order import OrderSpec, Skips, stages_of
from headrace.server.datasets.served import Lengths, Served
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.ranks import Dealing, Ranks
from headrace.server.plan.stream_request import Readable
from headrace.v1 import shard_service_pb2 as pb


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
        self.memory_bytes, self.raw_bytes = inner.memory_bytes, inner.raw_bytes
        self.samples_an_item, self.has_pieces = inner.samples_an_item, inner.has_pieces
        self.retirements, self.packed = inner.retirements, inner.packed
        self.skip_lists = inner.skip_lists
        self.blocks, self.writer, self.parts = inner.blocks, inner.writer, inner.parts
        self.shown_ids, self.shown_samples = inner.shown_ids, inner.shown_samples
        self.joined_ids, self.tally = inner.joined_ids, inner.tally

    @property
    def readable(self) -> Readable:
        """Return what requests are checked against."""
        return self.inner.readable

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

    def lengths(self, *, field: str) -> Lengths:
        """Return the lengths of samples."""
        return self.inner.lengths(field=field)

    def dealing(self, order: OrderSpec, ranks: Ranks, finder: Finder) -> Dealing | None:
        """Return an object that deals samples to ranks; None if they are dealt in order."""
        return self.inner.dealing(order, ranks, finder)

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
