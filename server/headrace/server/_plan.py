"""What a stream will send, batch after batch: the order and the slicing joined, no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order import EpochPlan, RankBatch, Token, TokenEncoder
from headrace.server._kernels import KERNELS
from headrace.server._request import StreamSpec
from headrace.server._skip_lists import digest_of
from headrace.server._transform_step import transforms_text

# Blocks within so many times the samples are counted (6 us for 4,096 samples), not sorted (50 us).
_CLOSE = 8

# Batches worked out at once, so that the calls that this takes are shared: the first alone, since
# somebody waits for it, then twice as many each time, up to these bounds (measured: from there on
# the work itself is what counts).
_GROUP_BATCHES = 8
_GROUP_SAMPLES = 1 << 15


class SampleOrder(Protocol):
    """What a plan needs of an order."""

    @property
    def sample_count(self) -> int:
        """Samples of an epoch."""

    def sample_ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at the positions ``[start, stop)`` of an epoch."""

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return at which positions a substitute stands for a skipped sample."""


class Locator(Protocol):
    """What a plan needs of a dataset."""

    @property
    def fingerprint(self) -> str:
        """Names the dataset's version."""

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each sample and its place in that block."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """One batch of one rank, before anything of it is read.

    Attributes:
        epoch: The epoch.
        step: Global batches of the run before this one.
        part: The rank's part of the global batch.
        token: Resumes after the global batch.
        sample_ids: ``(samples,) int64``, pads last.
        blocks: ``(samples,) int64``: the block of each.
        offsets: ``(samples,) int64``: its place in that block.
        touched: Its distinct blocks, ascending.
        substitutes: How many of its own samples are skipped, so that others stand in their place.
    """

    epoch: int
    step: int
    part: RankBatch
    token: bytes
    sample_ids: NDArray[np.int64]
    blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    touched: NDArray[np.int64]
    substitutes: int = 0


@dataclass(frozen=True, slots=True)
class PlannedEnd:
    """The end of an epoch.

    Attributes:
        epoch: The epoch.
        batch_count: Batches that this stream sent of it.
        sample_count: Samples that this stream sent of it, pads included.
        dropped: Samples that no rank got.
        token: Resumes at the begin of the next epoch.
        dataset_sample_counts: Of a mixture, how many of the samples each dataset gave.
        substitutes: How many of the samples stand in the place of skipped ones.
    """

    epoch: int
    batch_count: int
    sample_count: int
    dropped: int
    token: bytes
    dataset_sample_counts: tuple[int, ...]
    substitutes: int


Planned = PlannedBatch | PlannedEnd

# Counts samples by dataset of a mixture, and nothing otherwise.
Tally = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def planned_stream(
    spec: StreamSpec, order: SampleOrder, locator: Locator, *, tally: Tally
) -> Iterator[Planned]:
    """Yield all that a stream sends, in order; a few batches are worked out at a time."""
    position, step, consumed = spec.position, spec.step, spec.consumed
    for epoch in itertools.count(spec.epoch):
        if spec.epoch_count and epoch == spec.epoch + spec.epoch_count:
            return
        plan = EpochPlan(order.sample_count, position, spec.global_batch_size, spec.end)
        batches = _Epoch(
            spec, order, locator, tally, epoch=epoch, step=step, consumed=consumed, plan=plan
        )
        yield from batches.events()
        step += plan.batch_count
        consumed += order.sample_count - position - plan.dropped
        position = 0


def planned_samples(sample_ids: NDArray[np.int64], locator: Locator) -> PlannedBatch:
    """Return samples as a batch of their own, which stands in no epoch."""
    count = sample_ids.size
    blocks, offsets = locator.locate(sample_ids)
    return PlannedBatch(
        epoch=0,
        step=0,
        part=RankBatch(
            index=0,
            position=0,
            next_position=0,
            global_sample_count=count,
            start=0,
            stop=count,
            pad_positions=(),
            loss_scale=1.0,
        ),
        token=b"",
        sample_ids=sample_ids,
        blocks=blocks,
        offsets=offsets,
        touched=_distinct(blocks),
    )


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch of a stream."""

    spec: StreamSpec
    order: SampleOrder
    locator: Locator
    tally: Tally
    epoch: int
    step: int
    consumed: int
    plan: EpochPlan

    def events(self) -> Iterator[Planned]:
        indices = range(self.spec.batch_offset, self.plan.batch_count, self.spec.batch_stride)
        encoder = self._encoder()
        dataset_sample_counts = self.tally(np.empty(0, np.int64))
        sample_count = substitutes = at = 0
        size = 1
        while at < len(indices):
            sample_ids, batches = self._batches(indices[at : at + size], encoder)
            sample_count += sample_ids.size
            dataset_sample_counts += self.tally(sample_ids)
            substitutes += sum(batch.substitutes for batch in batches)
            yield from batches
            at += size
            size = min(2 * size, _GROUP_BATCHES)
            size = max(1, min(size, _GROUP_SAMPLES // max(1, batches[0].sample_ids.size)))
        token = self._token(
            encoder, self.plan.batch_count, self.order.sample_count - self.plan.dropped
        )
        yield PlannedEnd(
            epoch=self.epoch,
            batch_count=len(indices),
            sample_count=sample_count,
            dropped=self.plan.dropped,
            token=token,
            dataset_sample_counts=tuple(dataset_sample_counts.tolist()),
            substitutes=substitutes,
        )

    def _batches(
        self, indices: range, encoder: TokenEncoder
    ) -> tuple[NDArray[np.int64], list[PlannedBatch]]:
        spec = self.spec
        parts = self.plan.batches(
            indices, rank=spec.rank, world_size=spec.world_size, replication=spec.replication
        )
        sample_ids = self._all_sample_ids(parts)
        blocks, offsets = self.locator.locate(sample_ids)
        batches = []
        ends = list(itertools.accumulate(part.sample_count for part in parts))
        touched = distinct_each(blocks, ends, kernels=KERNELS.module)
        for index, part, end, own_blocks in zip(indices, parts, ends, touched, strict=True):
            own = slice(end - part.sample_count, end)
            batches.append(
                PlannedBatch(
                    epoch=self.epoch,
                    step=self.step + index,
                    part=part,
                    token=self._token(encoder, index + 1, part.next_position),
                    sample_ids=sample_ids[own],
                    blocks=blocks[own],
                    offsets=offsets[own],
                    touched=own_blocks,
                    substitutes=self._substitutes(part),
                )
            )
        return sample_ids, batches

    def _substitutes(self, part: RankBatch) -> int:
        if self.spec.skips is None:
            return 0
        return int(self.order.skipped(self.epoch, part.start, part.stop).sum())

    def _all_sample_ids(self, parts: Sequence[RankBatch]) -> NDArray[np.int64]:
        """Return the ids of several batches, one after the other."""
        if all(a.stop == b.start for a, b in itertools.pairwise(parts)) and not any(
            part.pad_positions for part in parts
        ):
            # The batches of a world of one rank follow one another.
            return self.order.sample_ids(self.epoch, parts[0].start, parts[-1].stop)
        return np.concatenate([self._sample_ids(part) for part in parts])

    def _sample_ids(self, part: RankBatch) -> NDArray[np.int64]:
        own = self.order.sample_ids(self.epoch, part.start, part.stop)
        if not part.pad_positions:
            return own
        pads = np.array(part.pad_positions, np.int64)
        # Pads repeat the batch's own positions in ascending runs.
        runs = np.split(pads, np.flatnonzero(np.diff(pads) != 1) + 1)
        repeats = [self.order.sample_ids(self.epoch, int(run[0]), int(run[-1]) + 1) for run in runs]
        return np.concatenate([own, *repeats])

    def _encoder(self) -> TokenEncoder:
        return TokenEncoder(
            Token(
                fingerprint=self.locator.fingerprint,
                spec=self.spec.order,
                epoch=self.epoch,
                position=0,
                global_batch_size=self.spec.global_batch_size,
                step=0,
                sample_count=0,
                mixture=self.spec.mixture,
                skips=digest_of(self.spec.skips),
                transforms=transforms_text(self.spec.transforms),
            )
        )

    def _token(self, encoder: TokenEncoder, batch_count: int, next_position: int) -> bytes:
        """Return the token after so many batches; after the last it opens the next epoch."""
        is_last = batch_count == self.plan.batch_count
        return encoder.encode(
            epoch=self.epoch + is_last,
            position=0 if is_last else next_position,
            step=self.step + batch_count,
            sample_count=self.consumed + next_position - self.plan.base,
        )


def distinct_each(
    blocks: NDArray[np.int64], ends: Sequence[int], *, kernels: ModuleType | None
) -> list[NDArray[np.int64]]:
    """Return the distinct blocks of each of several batches, ascending.

    Args:
        blocks: ``(samples,) int64``: of all batches, one after the other.
        ends: Where those of each batch end.
        kernels: The compiled functions, if they are there.
    """
    if kernels is not None:
        found, found_ends = np.empty_like(blocks), np.empty(len(ends), np.int64)
        most = _CLOSE * blocks.size
        if kernels.distinct(blocks, np.array(ends, np.int64), most, found, found_ends):
            edges = [0, *found_ends.tolist()]
            return [found[begin:end] for begin, end in itertools.pairwise(edges)]
    return [_distinct(blocks[begin:end]) for begin, end in itertools.pairwise([0, *ends])]


def _distinct(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct blocks, ascending; where they lie close together without sorting."""
    if not blocks.size:
        return blocks
    first = int(blocks.min())
    if int(blocks.max()) - first > _CLOSE * blocks.size:
        return np.unique(blocks)
    return np.flatnonzero(np.bincount(blocks - first)) + first
