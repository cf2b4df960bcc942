"""An exercise: a stage that drops every odd sample id, with nothing outside of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessages
from numpy.typing import NDArray
from prometheus_client import Counter

from headrace.errors import BadArgumentError
from headrace.order import OrderSpec, Skips
from headrace.server.datasets.order_stage import NamedStage
from headrace.server.datasets.served import Served
from headrace.server.plan.find_samples import BatchPlaces, Finder, Range
from headrace.server.plan.planned_batches import ascending_runs
from headrace.server.plan.stream_request import Readable, ReadRequest
from headrace.server.stream.order_plugs import OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics

# What protoc would make of: message Even {}
_FILE = FileDescriptorProto(name="exercise/even.proto", package="exercise", syntax="proto3")
_FILE.message_type.add(name="Even")
EvenOptions: Final[Any] = GetMessages([_FILE])["exercise.Even"]


class EvenFinder:
    """Finds the samples with even ids; the others leave no gaps.

    Args:
        inner: Finds all samples.
    """

    def __init__(self, inner: Finder) -> None:
        self._inner = inner
        self.ordered, self.steps, self.replacing = inner.ordered, None, None
        self.lane_bytes, self.fingerprint = inner.lane_bytes, inner.fingerprint
        self.has_substitutes, self.blocks_of_runs = inner.has_substitutes, inner.blocks_of_runs
        self._kept = lru_cache(maxsize=2)(self._find_kept)
        self.sample_count = self._kept(0).size

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[BatchPlaces]:
        """Return the samples at the positions of each batch, which may be several ranges."""
        kept = self._kept(epoch)
        return self._inner.find(
            epoch,
            [[run for range_ in batch for run in _runs(kept, range_)] for batch in batches],
        )

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return the positions at which a substitute replaces a skipped sample."""
        skipped = self._inner.skipped(epoch, 0, self._inner.sample_count)
        return skipped[self._kept(epoch)[start:stop]]

    def positions(self, epoch: int, sample_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return all positions of given samples in an epoch."""
        kept = self._kept(epoch)
        found = self._inner.positions(epoch, sample_ids)
        return [np.flatnonzero(np.isin(kept, each)) for each in found]

    def _find_kept(self, epoch: int) -> NDArray[np.int64]:
        (whole,) = self._inner.find(epoch, [[(0, self._inner.sample_count)]])
        return np.flatnonzero(whole.item_ids % 2 == 0)


def _runs(kept: NDArray[np.int64], range_: Range) -> list[Range]:
    return ascending_runs(kept[slice(*range_)])


class Even(NamedStage):
    """What a stream reads, without samples that have an odd id.

    Args:
        inner: What it reads with all.
    """

    def __init__(self, inner: Served) -> None:
        super().__init__(inner, "even", "1")

    @cached_property
    def readable(self) -> Readable:
        """Return half of the samples."""
        readable = super().readable
        return replace(readable, sample_count=(readable.sample_count + 1) // 2)

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return what finds the samples with even ids."""
        return EvenFinder(self.inner.finder(spec, skips))

    def unskipped_finder(self, spec: OrderSpec) -> Finder:
        """Return the same without skips."""
        return EvenFinder(self.inner.unskipped_finder(spec))


class Plug(OrderPlug):
    """The stage of a server."""

    name = "even"
    after = ("skips",)
    options = EvenOptions

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._halved = Counter("halved_total", "Requests.", registry=metrics.registry)

    def reading(self, served: Served, request: ReadRequest) -> Served:
        """Return the samples with even ids, if the request asks for them."""
        if request.options(EvenOptions) is None:
            return served
        if served.has_pieces:
            raise BadArgumentError("even: packed rows have no ids; read samples", field="stages")
        self._halved.inc()
        return Even(served)
