"""What a stream will send, batch after batch, and the blocks that it asks for ahead of need."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order import EpochPlan, RankBatch, Token, TokenEncoder
from headrace.server.cache.source import Blocks, Waiter
from headrace.server.plan.dealing import Dealer
from headrace.server.plan.find_samples import Finder, Found, Locator, Range, located
from headrace.server.plan.steps_ahead import StepsAhead
from headrace.server.plan.stream_request import StreamSpec
from headrace.server.steps.transform_step import transforms_text

# Batches worked out at once, so that the calls that this takes are shared: the first of a stream
# alone, since somebody waits for it, then twice as many each time, also from one epoch to the next,
# up to these bounds (measured: from there on the work itself is what counts).
_GROUP_BATCHES = 8
_GROUP_SAMPLES = 1 << 15


# Made for each batch: a frozen dataclass would take three times as long.
class PlannedBatch(NamedTuple):
    """One batch of one rank, before anything of it is read.

    Attributes:
        epoch: The epoch.
        step: Global batches of the run before this one.
        part: The rank's part of the global batch.
        token: Resumes after the global batch.
        found: Its samples, pads last.
        substitutes: How many of its own samples are skipped, so that others stand in their place.
        positions: Of its samples, where they do not follow one another; else None.
    """

    epoch: int
    step: int
    part: RankBatch
    token: bytes
    found: Found
    substitutes: int = 0
    positions: NDArray[np.int64] | None = None

    @property
    def sample_count(self) -> int:
        """Return how many samples it has, or rows of packed ones."""
        return self.found.end - self.found.begin

    def is_alike(self, other: PlannedBatch) -> bool:
        """Return whether another one can be made together with this one, which it follows."""
        mine, its = self.found, other.found
        return (
            mine.together is its.together
            and mine.end - mine.begin == its.end - its.begin
            and self.part.global_sample_count == other.part.global_sample_count
            and not other.part.pad_positions
        )


@dataclass(frozen=True, slots=True)
class PlannedEnd:
    """The end of an epoch.

    Attributes:
        epoch: The epoch.
        batch_count: Batches that this stream sent of it.
        sample_count: Samples that this stream sent of it, pads included.
        dropped: Samples that no rank got.
        token: Resumes at the beginning of the next epoch.
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


Planned = list[PlannedBatch] | PlannedEnd
"""Batches of one epoch that were planned together, or its end."""

# Counts samples by dataset of a mixture, and nothing otherwise.
Tally = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def planned_stream(
    spec: StreamSpec, finder: Finder, *, tally: Tally, dealer: Dealer | None = None
) -> Iterator[Planned]:
    """Yield all that a stream sends, in order: first one batch, then several at a time.

    Of a dataset without samples that is the end of one epoch, however many are asked for: without
    end they would follow one another as fast as they can be sent.
    """
    position, step, consumed = spec.position, spec.step, spec.consumed
    size = 1
    for epoch in itertools.count(spec.epoch):
        if spec.epoch_count and epoch == spec.epoch + spec.epoch_count:
            return
        plan = EpochPlan(finder.sample_count, position, spec.global_batch_size, spec.end)
        batches = _Epoch(spec, finder, tally, dealer, epoch, step, consumed, plan)
        size = yield from batches.events(size)
        if not finder.sample_count:
            return
        step += plan.batch_count
        consumed += finder.sample_count - position - plan.dropped
        position = 0


def planned_samples(sample_ids: NDArray[np.int64], locator: Locator) -> PlannedBatch:
    """Return samples as a batch of their own, which stands in no epoch."""
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
    )


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch of a stream."""

    spec: StreamSpec
    finder: Finder
    tally: Tally
    dealer: Dealer | None
    epoch: int
    step: int
    consumed: int
    plan: EpochPlan

    def events(self, size: int) -> Generator[Planned, None, int]:
        """Yield its batches, so many of them first and then more at a time, and its end.

        Returns:
            With how many at a time the next epoch may begin.
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
                # Of several batches at once: a mixture's tally takes longer to call than to do.
                dataset_sample_counts += self.tally(
                    np.concatenate([batch.found.item_ids for batch in batches])
                )
            yield batches
            at += size
            if at < len(indices):
                # Not by the last, which may be small.
                size = min(2 * size, _GROUP_BATCHES)
                size = max(1, min(size, _GROUP_SAMPLES // max(1, batches[0].sample_count)))
        token = self._token(
            encoder, self.plan.batch_count, self.finder.sample_count - self.plan.dropped
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
        return size

    def _batches(self, indices: range, encoder: TokenEncoder) -> list[PlannedBatch]:
        spec = self.spec
        parts = self.plan.batches(
            indices, rank=spec.rank, world_size=spec.world_size, replication=spec.replication
        )
        if self.dealer is not None and self.dealer.is_dealt(parts[-1]):
            return self._dealt(parts, self.dealer, encoder)
        if self.dealer is not None and len(parts) > 1:
            # The last one is dealt in order.
            return self._batches(indices[:-1], encoder) + self._batches(indices[-1:], encoder)
        found = self.finder.find(self.epoch, [ranges_of(part) for part in parts])
        return [
            PlannedBatch(
                epoch=self.epoch,
                step=self.step + index,
                part=part,
                token=self._token(encoder, index + 1, part.next_position),
                found=samples,
                substitutes=self._substitutes(part),
            )
            for index, part, samples in zip(indices, parts, found, strict=True)
        ]

    def _dealt(
        self, parts: Sequence[RankBatch], dealer: Dealer, encoder: TokenEncoder
    ) -> list[PlannedBatch]:
        """Return batches of what a dealer gives the rank."""
        found, positions = dealer.find(self.epoch, parts, self.spec.rank)
        return [
            PlannedBatch(
                epoch=self.epoch,
                step=self.step + part.index,
                part=part,
                token=self._token(encoder, part.index + 1, part.next_position),
                found=samples,
                substitutes=self._dealt_substitutes(part, own),
                positions=own,
            )
            for part, samples, own in zip(parts, found, positions, strict=True)
        ]

    def _dealt_substitutes(self, part: RankBatch, positions: NDArray[np.int64]) -> int:
        if self.spec.skips is None:
            return 0
        skipped = self.finder.skipped(self.epoch, part.position, part.next_position)
        return int(skipped[positions - part.position].sum())

    def _substitutes(self, part: RankBatch) -> int:
        if self.spec.skips is None:
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
                mixture=self.spec.mixture,
                skips=self.spec.skips_digest,
                transforms=(
                    transforms_text(self.spec.transforms, self.spec.images)
                    if self.spec.transforms or self.spec.images
                    else ""
                ),
                kept=self.spec.kept,
            )
        )

    def _token(self, encoder: TokenEncoder, batch_count: int, next_position: int) -> bytes:
        """Return the token after that many batches; after the last it opens the next epoch."""
        is_last = batch_count == self.plan.batch_count
        return encoder.encode(
            epoch=self.epoch + is_last,
            position=0 if is_last else next_position,
            step=self.step + batch_count,
            sample_count=self.consumed + next_position - self.plan.base,
        )


def ranges_of(part: RankBatch) -> list[Range]:
    """Return the positions of a batch: its own, then its pads, which repeat ascending runs."""
    ranges = [(part.start, part.stop)]
    if part.pad_positions:
        pads = np.array(part.pad_positions, np.int64)
        runs = np.split(pads, np.flatnonzero(np.diff(pads) != 1) + 1)
        ranges += [(int(run[0]), int(run[-1]) + 1) for run in runs]
    return ranges


# A plan holds some 30 bytes a sample; these bound what a stream keeps of them (arbitrary).
_MAX_PLANS = 64
_MAX_SAMPLES = 1 << 17

# Plans worked out for one taken while all goes well: enough to get ahead, not so many that a
# batch waits for them.
_STEADY_PLANS = 2

# A first batch that waits for more than this has the store for itself: nothing is asked for beside
# it. Some 50 ms of a fast store, so that little time is lost where it needs less.
_ALONE_BYTES = 32 << 20


BlocksOfRuns: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]

FORESEEN_SAMPLES = _MAX_SAMPLES
"""Samples that a job looks ahead, so that the cache knows which blocks are done with: of a block
that is not, some sixty are among them in a cache of 2 GiB, or all that are left of it. It takes the
time that planning takes in any case."""
# And batches, each of which takes some memory besides.
_MAX_FORESEEN = 1 << 10
# Batches that are foreseen for one taken, until it is far enough: so that it is before a cache is
# full that was half full when it began.
_FORESEEN_PLANS = 3

_Entry: TypeAlias = tuple[PlannedBatch | PlannedEnd, int, int]
"""A plan, its samples, and the bytes that were asked for because of it."""


# What a stream has for its plans and its tables without asking for it.
_FREE_BYTES = 4 << 20
_PLAN_BYTES = 32
# While a batch is planned it takes some arrays of each of its samples.
_PLANNING_BYTES = 200


def plan_bytes(sample_count: int) -> int:
    """Return the bytes that plans of batches of this size take, beyond what each stream has.

    Only batches of very many samples take any.
    """
    planned = min(_MAX_PLANS * sample_count, max(_MAX_SAMPLES, 2 * sample_count))
    return max(0, _PLAN_BYTES * planned + _PLANNING_BYTES * sample_count - _FREE_BYTES)


class Lookahead:
    """The plans of one stream, and the fetches that they call for.

    Not safe for several threads.

    Args:
        plans: What the stream sends.
        blocks: Fetches them.
        waiter: The stream in the cache.
        budget_bytes: Gives the greatest size of blocks to ask for ahead of need, as it is now.
        blocks_of_runs: Returns the blocks that are read together with those of some samples; None
            where each block is read for itself.
        foreseen_samples: How many samples to look ahead once blocks may have to go, for the cache
            to know which it still needs; those that are asked for count.
        steps: Makes what asks for the steps of the order that follow, if there are any; called once
            a first batch is out.
    """

    def __init__(
        self,
        plans: Iterator[Planned],
        *,
        blocks: Blocks,
        waiter: Waiter,
        budget_bytes: Callable[[], int],
        blocks_of_runs: BlocksOfRuns | None = None,
        foreseen_samples: int = 0,
        steps: Callable[[], StepsAhead] | None = None,
    ) -> None:
        self._plans = plans
        self._make_steps = steps
        self._steps: StepsAhead | None = None
        self._most_foreseen = foreseen_samples
        self._foreseen: deque[Planned] = deque()
        self._foreseen_samples = self._foreseen_batches = self._foreseeable = 0
        self._blocks = blocks
        self._waiter = waiter
        self._budget_bytes = budget_bytes
        self._blocks_of_runs = blocks_of_runs
        self._unasked: deque[PlannedBatch] = deque()
        self._entries: deque[_Entry] = deque()
        self._samples = 0
        self._taken = 0
        self._first_bytes = 0

    def take(self, most: int = 1) -> list[PlannedBatch] | PlannedEnd | None:
        """Return the next plan, or None at the end of the stream.

        Args:
            most: Batches to return; fewer if those that follow are not alike.
        """
        self._first_bytes = 0
        self.advance(_STEADY_PLANS * most if self._taken else 1)
        if not self._entries:
            return None
        planned, samples, asked_bytes = self._entries.popleft()
        if not self._taken:
            self._first_bytes = asked_bytes
        if isinstance(planned, PlannedEnd):
            self._took(1, 0, asked_bytes)
            return planned
        followers = self._followers(planned, most - 1) if most > 1 else []
        for _ in followers:
            asked_bytes += self._entries.popleft()[2]
        count = 1 + len(followers)
        self._took(count, samples * count, asked_bytes)
        if self._waiter.filling.is_filling:
            self._foresee(count)
        if self._make_steps is not None and self._taken > 1:
            self._advance_steps(self._make_steps, followers[-1] if followers else planned)
        return [planned, *followers]

    def _advance_steps(self, make: Callable[[], StepsAhead], last: PlannedBatch) -> None:
        if self._steps is None:
            self._steps = make()
        self._steps.advance(
            self._blocks, self._waiter, epoch=last.epoch, position=last.part.position
        )

    def advance(self, count: int = _MAX_PLANS) -> None:
        """Plan some ``count`` further batches, as far as the budget allows, but always one.

        None while a first batch waits for much.
        """
        if self._first_bytes > _ALONE_BYTES:
            return
        budget_bytes, ahead = self._budget_bytes(), self._waiter.ahead
        while count > 0:
            is_full = (
                self._waiter.asked_bytes >= budget_bytes
                or ahead.asked_bytes >= budget_bytes * ahead.streams
                or self._samples >= _MAX_SAMPLES
                or len(self._entries) >= _MAX_PLANS
            )
            if self._entries and is_full:
                return
            added = self._add_some()
            if not added:
                return
            count -= added

    def _followers(self, planned: PlannedBatch, most: int) -> list[PlannedBatch]:
        """Return batches that follow and are made with a first one, if all they need is there.

        Otherwise they wait, each by itself, and until then what they need must count as needed.
        """
        followers: list[PlannedBatch] = []
        for follower, _, _ in itertools.islice(self._entries, most):
            if isinstance(follower, PlannedEnd) or not planned.is_alike(follower):
                break
            followers.append(follower)
        if followers:
            found = planned.found.up_to(followers[-1].found)
            if not self._blocks.is_cached(found.touched).all():
                return []
        return followers

    def _took(self, count: int, samples: int, asked_bytes: int) -> None:
        self._taken += count
        self._waiter.begin_batch(count)
        self._samples -= samples
        if asked_bytes:
            self._waiter.ask_bytes(-asked_bytes)

    def _foresee(self, count: int) -> None:
        """Look further ahead, by some more batches than were taken; not while a first one waits."""
        if self._first_bytes > _ALONE_BYTES:
            return
        self._foreseeable += _FORESEEN_PLANS * count
        while (
            self._foreseeable > 0
            and self._samples + self._foreseen_samples < self._most_foreseen
            and self._foreseen_batches < _MAX_FORESEEN
            and (planned := next(self._plans, None)) is not None
        ):
            batches = [] if isinstance(planned, PlannedEnd) else planned
            for batch in batches:
                self._waiter.foresee_batch()
                self._blocks.foresee(batch.found.touched, self._waiter)
                self._foreseen_samples += batch.sample_count
            if not batches:
                self._waiter.foresee_batch()
            self._foreseen_batches += len(batches)
            self._foreseen.append(planned)
            self._foreseeable -= max(1, len(batches))
        # What could not be foreseen is not made up for later.
        self._foreseeable = min(self._foreseeable, 0)

    def _next_foreseen(self) -> Planned:
        planned = self._foreseen.popleft()
        if not isinstance(planned, PlannedEnd):
            self._foreseen_samples -= sum([batch.sample_count for batch in planned])
            self._foreseen_batches -= len(planned)
        return planned

    def _add_some(self) -> int:
        """Ask for what a next batch needs, or what several need that is all there."""
        if not self._unasked:
            planned = self._next_foreseen() if self._foreseen else next(self._plans, None)
            if planned is None:
                return 0
            if isinstance(planned, PlannedEnd):
                self._waiter.plan_batch()
                self._entries.append((planned, 0, 0))
                return 1
            if len(planned) > 1 and self._are_there(planned):
                return len(planned)
            self._unasked.extend(planned)
        planned_batch = self._unasked.popleft()
        self._waiter.plan_batch()
        asked_bytes = 0
        asked = self._blocks.prefetch(self._with_runs(planned_batch.found), self._waiter)
        if asked.size:
            asked_bytes = int(self._blocks.stored_bytes(asked).sum())
        self._entries.append((planned_batch, planned_batch.sample_count, asked_bytes))
        self._samples += planned_batch.sample_count
        if asked_bytes:
            self._waiter.ask_bytes(asked_bytes)
        return 1

    def _with_runs(self, found: Found) -> NDArray[np.int64]:
        """Return the blocks of a batch, and those that are read together with the absent ones.

        One read brings them, and batches that follow need them; but somebody waits for the first.
        """
        if self._blocks_of_runs is None or not self._taken:
            return found.touched
        absent = ~self._blocks.is_cached(found.touched)
        if not absent.any():
            return found.touched
        lacking = np.isin(found.blocks, found.touched[absent])
        runs = self._blocks_of_runs(found.sample_ids[lacking])
        return np.union1d(found.touched, runs)

    def _are_there(self, batches: list[PlannedBatch]) -> bool:
        """Add batches if none of them has to be fetched for; their blocks count as the last's."""
        if batches[0].found.together is not batches[-1].found.together:
            return False
        found = batches[0].found.up_to(batches[-1].found)
        if not self._blocks.is_cached(found.touched).all():
            return False
        self._waiter.plan_batch(len(batches))
        # One that goes in between is fetched again.
        self._blocks.prefetch(found.touched, self._waiter)
        self._entries.extend([(batch, batch.sample_count, 0) for batch in batches])
        self._samples += found.end - found.begin
        return True
