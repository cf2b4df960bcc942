"""Plan what a stream sends, batch after batch: positions, samples and tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order import EpochPlan, RankBatch, Token, TokenEncoder, stages_of
from headrace.server.batch.stage import Accompany, Companions
from headrace.server.plan.compiled import Locator
from headrace.server.plan.find_samples import BatchPlaces, Finder, Range
from headrace.server.plan.plain_finder import located
from headrace.server.plan.ranks import Dealing
from headrace.server.plan.stream_request import StreamSpec
from headrace.v1 import shard_service_pb2 as pb

# The most batches planned together, to share the cost of calls. The first batch of a stream is
# planned alone, because its client waits for it, and then twice as many each time (measured: beyond
# this bound the work itself dominates).
_GROUP_BATCHES = 8
_GROUP_SAMPLES = 1 << 15


# Made for each batch: a frozen dataclass would take three times as long.
class PlannedBatch(NamedTuple):
    """One batch of one rank, before it is read.

    Attributes:
        epoch: The epoch.
        step: The number of global batches of the run before this one.
        part: The rank's part of the global batch.
        token: Resumes after the global batch.
        found: Its samples, then pads, then its companions.
        sample_count: Its number of samples or packed rows, pads included.
        substitutes: How many of its own samples are skipped and replaced by others.
        dealt: The positions of its samples, if they are not consecutive; else None.
        companions: The samples that stages need in addition; None if none does.
        damaged: Its own samples that are replaced because of damage, without pads; None for none.
    """

    epoch: int
    step: int
    part: RankBatch
    token: bytes
    found: BatchPlaces
    sample_count: int
    substitutes: int = 0
    dealt: NDArray[np.int64] | None = None
    companions: Companions | None = None
    damaged: NDArray[np.int64] | None = None

    @property
    def row_count(self) -> int:
        """Return the number of samples to read for it."""
        return self.found.end - self.found.start

    @property
    def item_ids(self) -> NDArray[np.int64]:
        """Return the items of the order for the rank, ``(samples,) int64``."""
        return self.found.item_ids[: self.sample_count]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Return the positions of all samples to read, ``(rows,) int64``."""
        own = positions_of(self.part) if self.dealt is None else self.dealt
        if self.companions is None:
            return own
        return np.concatenate([own, self.companions.positions])

    def is_alike(self, other: PlannedBatch) -> bool:
        """Return whether the next batch can be made together with this one."""
        mine, its = self.found, other.found
        return (
            mine.together is its.together
            and mine.end - mine.start == its.end - its.start
            and self.part.global_sample_count == other.part.global_sample_count
            and not other.part.pad_positions
        )


Planned: TypeAlias = tuple[list[PlannedBatch], pb.EpochEnd | None]
"""Batches of one epoch that were planned together; or none, and its end."""

# Counts samples by dataset of a mixture, and nothing otherwise.
Tally = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def planned_stream(
    spec: StreamSpec,
    finder: Finder,
    *,
    tally: Tally,
    dealing: Dealing | None = None,
    accompany: Accompany | None = None,
) -> Iterator[Planned]:
    """Yield everything that a stream sends, in order: first one batch, then several at a time.

    For an empty dataset that is the end of a single epoch, whatever the number of epochs; otherwise
    ends would be sent without pause.
    """
    position, step, consumed = spec.position, spec.step, spec.consumed
    size = 1
    for epoch in itertools.count(spec.epoch):
        if spec.epoch_count and epoch == spec.epoch + spec.epoch_count:
            return
        plan = EpochPlan(finder.sample_count, position, spec.global_batch_size, spec.end)
        batches = _Epoch(spec, finder, tally, dealing, accompany, epoch, step, consumed, plan)
        size = yield from batches.events(size)
        if not finder.sample_count:
            return
        step += plan.batch_count
        consumed += finder.sample_count - position - plan.dropped
        position = 0


def planned_samples(sample_ids: NDArray[np.int64], locator: Locator) -> PlannedBatch:
    """Return samples as a separate batch, outside of any epoch."""
    count = sample_ids.size
    (found,) = located(sample_ids, [count], locator)
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
        found=found,
        sample_count=count,
    )


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch of a stream."""

    spec: StreamSpec
    finder: Finder
    tally: Tally
    dealing: Dealing | None
    accompany: Accompany | None
    epoch: int
    step: int
    consumed: int
    plan: EpochPlan

    def events(self, size: int) -> Generator[Planned, None, int]:
        """Yield its batches, a few at first and then more at a time, and its end.

        Returns:
            The number of batches to plan at a time at the start of the next epoch.
        """
        indices = range(self.spec.batch_offset, self.plan.batch_count, self.spec.batch_stride)
        encoder = self._encoder()
        dataset_sample_counts = self.tally(np.empty(0, np.int64))
        sample_count = substitutes = at = 0
        while at < len(indices):
            batches = self._batches(indices[at : at + size], encoder)
            for batch in batches:
                sample_count += batch.sample_count
                substitutes += batch.substitutes
            if dataset_sample_counts.size:
                # For several batches together, because calling a mixture's tally is the main cost.
                dataset_sample_counts += self.tally(
                    np.concatenate([batch.item_ids for batch in batches])
                )
            yield batches, None
            at += size
            if at < len(indices):
                # Not after the last group, which may be small.
                size = min(2 * size, _GROUP_BATCHES)
                size = max(1, min(size, _GROUP_SAMPLES // max(1, batches[0].sample_count)))
        token = self._token(
            encoder, self.plan.batch_count, self.finder.sample_count - self.plan.dropped
        )
        end = pb.EpochEnd(
            epoch=self.epoch,
            batch_count=len(indices),
            sample_count=sample_count,
            dropped_sample_count=self.plan.dropped,
            resume_token=token,
            dataset_sample_counts=dataset_sample_counts.tolist(),
            substitute_count=substitutes,
        )
        yield [], end
        return size

    def _batches(self, indices: range, encoder: TokenEncoder) -> list[PlannedBatch]:
        spec = self.spec
        parts = self.plan.batches(indices, rank=spec.rank, world_size=spec.world_size)
        if self.dealing is not None and self.dealing.is_dealt(parts[-1]):
            return self._dealt(parts, self.dealing, encoder)
        if self.dealing is not None and len(parts) > 1:
            # The last batch is dealt in order.
            return self._batches(indices[:-1], encoder) + self._batches(indices[-1:], encoder)
        ranges = [ranges_of(part) for part in parts]
        companions: Sequence[Companions | None] = [None] * len(parts)
        if self.accompany is not None:
            companions = [self.accompany(part, positions_of(part)) for part in parts]
            for own, each in zip(ranges, companions, strict=True):
                own.extend([] if each is None else ascending_runs(each.positions))
        found = self.finder.find(self.epoch, ranges)
        return [
            PlannedBatch(
                epoch=self.epoch,
                step=self.step + index,
                part=part,
                token=self._token(encoder, index + 1, part.next_position),
                found=samples,
                sample_count=samples.end
                - samples.start
                - (0 if each is None else each.positions.size),
                substitutes=self._substitutes(part),
                companions=each,
            )
            for index, part, samples, each in zip(indices, parts, found, companions, strict=True)
        ]

    def _dealt(
        self, parts: Sequence[RankBatch], dealing: Dealing, encoder: TokenEncoder
    ) -> list[PlannedBatch]:
        """Return the batches that are dealt to the rank."""
        found, positions = dealing.find(self.epoch, parts, self.spec.rank)
        companions: Sequence[Companions | None] = [None] * len(parts)
        if self.accompany is not None:
            companions = [self.accompany(*each) for each in zip(parts, positions, strict=True)]
            whole = [[(part.position, part.next_position)] for part in parts]
            rows = [
                np.concatenate([own, each.positions]) - part.position
                for part, own, each in zip(parts, positions, companions, strict=True)
                if each is not None
            ]
            batches = self.finder.find(self.epoch, whole)
            found = batches[0].together.picked(batches, rows)
        return [
            PlannedBatch(
                epoch=self.epoch,
                step=self.step + part.index,
                part=part,
                token=self._token(encoder, part.index + 1, part.next_position),
                found=samples,
                sample_count=samples.end
                - samples.start
                - (0 if each is None else each.positions.size),
                substitutes=self._dealt_substitutes(part, own),
                dealt=own,
                companions=each,
            )
            for part, samples, own, each in zip(parts, found, positions, companions, strict=True)
        ]

    def _dealt_substitutes(self, part: RankBatch, positions: NDArray[np.int64]) -> int:
        if not self.finder.has_substitutes:
            return 0
        skipped = self.finder.skipped(self.epoch, part.position, part.next_position)
        return int(skipped[positions - part.position].sum())

    def _substitutes(self, part: RankBatch) -> int:
        if not self.finder.has_substitutes:
            return 0
        return int(self.finder.skipped(self.epoch, part.start, part.stop).sum())

    def _encoder(self) -> TokenEncoder:
        return TokenEncoder(
            Token(
                fingerprint=self.finder.fingerprint,
                spec=self.spec.order,
                epoch=self.epoch,
                position=0,
                global_batch_size=self.spec.global_batch_size,
                step=0,
                sample_count=0,
                stages=self.spec.stages + stages_of(transforms=",".join(self.spec.batch_stages)),
            )
        )

    def _token(self, encoder: TokenEncoder, batch_count: int, next_position: int) -> bytes:
        """Return the token after a number of batches; after the last it starts the next epoch."""
        is_last = batch_count == self.plan.batch_count
        return encoder.encode(
            epoch=self.epoch + is_last,
            position=0 if is_last else next_position,
            step=self.step + batch_count,
            sample_count=self.consumed + next_position - self.plan.base,
        )


def positions_of(part: RankBatch) -> NDArray[np.int64]:
    """Return the positions of a batch that is dealt in order: its own, then its pads."""
    return np.concatenate(
        [np.arange(part.start, part.stop), np.array(part.pad_positions, np.int64)]
    )


def ranges_of(part: RankBatch) -> list[Range]:
    """Return the positions of a batch: its own, then its pads, which repeat ascending runs."""
    own = [(part.start, part.stop)]
    if not part.pad_positions:
        return own
    return own + ascending_runs(np.array(part.pad_positions, np.int64))


def ascending_runs(positions: NDArray[np.int64]) -> list[Range]:
    """Return positions as ranges of consecutive ones."""
    if not positions.size:
        return []
    runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]
