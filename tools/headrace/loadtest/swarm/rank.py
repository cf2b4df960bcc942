"""Simulate one trainer, which reads batches, sleeps for the time of a step, and keeps records.

Contract of `run_rank`:

1. Success: every batch of the generation is recorded once, in order of arrival.
2. Failure: the error of the client is returned with the records of earlier batches.
3. Stop: after ``stop`` is set, the rank ends within a second, or as soon as its reader closes.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from headrace.client import (
    BatchEvent,
    BatchReader,
    BufferPool,
    Feeds,
    Landing,
    Lane,
    Place,
    Prefetcher,
    Ring,
    Transport,
    TransportState,
)
from headrace.errors import HeadraceError
from headrace.loadtest.swarm.records import Recorder, Records, id_sum, order_sum
from headrace.loadtest.swarm.spec import Generation, SwarmSpec


@dataclass(frozen=True, slots=True)
class RankSeat:
    """A rank of a job, and where it starts.

    Attributes:
        job: Number of the job.
        generation: Number of the generation.
        rank: The rank.
        token: The token after which it starts, or None for the start of the run.
    """

    job: int
    generation: int
    rank: int
    token: bytes | None = None


@dataclass(frozen=True, slots=True)
class NextBatch:
    """A token, and the batch that must follow it."""

    seat: RankSeat
    token: bytes
    epoch: int
    position: int
    sample_count: int
    order_sum: int


@dataclass(slots=True)
class RankResult:
    """The result of a rank.

    Attributes:
        seat: The rank.
        records: Its batches.
        last_token: The token after its last batch, or None.
        next_batches: The kept tokens, with the batches that must follow them.
        failures: The number of stream failures by reason.
        error: Why the rank ended early, or an empty text.
        transport: How its batches came last, and why, where there is a reason.
    """

    seat: RankSeat
    records: Records
    last_token: bytes | None = None
    next_batches: list[NextBatch] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    error: str = ""
    transport: str = ""


@dataclass(slots=True)
class Tally:
    """The progress of a rank. Its thread writes it, and others read it without a lock.

    Attributes:
        recorder: The records of its batches.
        checkpoints: The tokens of rank 0, by the step after them.
    """

    batches: int = 0
    samples: int = 0
    payload_bytes: int = 0
    waited_s: float = 0.0
    recorder: Recorder = field(default_factory=Recorder)
    checkpoints: dict[int, bytes] = field(default_factory=dict)


def run_rank(
    spec: SwarmSpec, generation: Generation, seat: RankSeat, *, tally: Tally, stop: threading.Event
) -> RankResult:
    """Read the batches of one rank, as the contract of this module says."""
    run = _Run(spec, generation, seat, tally, stop)
    try:
        run.read()
    except HeadraceError as error:
        run.result.error = f"{error.reason}: {error}"
    finally:
        run.close()
    return run.result


class _Run:
    def __init__(
        self,
        spec: SwarmSpec,
        generation: Generation,
        seat: RankSeat,
        tally: Tally,
        stop: threading.Event,
    ) -> None:
        self.result = RankResult(seat, Recorder().records())
        self._spec, self._generation, self._seat = spec, generation, seat
        self._tally, self._stop = tally, stop
        self._recorder = tally.recorder
        self._random = random.Random(f"{seat.job} {seat.generation} {seat.rank}")
        self._token_steps = self._choose_steps()
        self._kept: tuple[int, bytes] | None = None
        epoch, _ = spec.batch_at(generation.first_step)
        self._transport = transport = TransportState()
        landing = Landing(BufferPool(idle_bytes=spec.prefetch_bytes).take, None, transport)
        options = Transport(spec.transport, [Ring(2 * spec.prefetch_bytes), Lane()])
        reader = BatchReader(
            spec.targets,
            spec.options(job=seat.job, rank=seat.rank, world_size=generation.world_size),
            place=Place(epoch, 0, seat.token),
            deadlines=spec.deadlines,
            allocate=landing.allocate,
            access=spec.access,
            on_failure=self._note_failure,
            open_feed=Feeds(options, landing, silence_s=spec.deadlines.silence_s),
        )
        self._prefetcher = Prefetcher(
            reader,
            budget_bytes=spec.prefetch_bytes,
            limit=transport.ready_bytes,
            is_ahead=transport.is_shared,
        )

    def read(self) -> None:
        end_at = None if self._spec.seconds is None else time.monotonic() + self._spec.seconds
        step = self._generation.first_step
        while step < self._generation.end_step and not self._stop.is_set():
            if end_at is not None and time.monotonic() >= end_at:
                return
            start = time.monotonic()
            event = self._prefetcher.get()
            if event is None:
                return
            if isinstance(event, BatchEvent):
                self._record(event, step, wait_s=time.monotonic() - start)
                step += 1
                self._rest(step)

    def close(self) -> None:
        self._prefetcher.close()
        came_by = self._transport
        self.result.transport = ": ".join(filter(None, (came_by.name, came_by.reason)))
        self.result.records = self._recorder.records()

    def _record(self, event: BatchEvent, step: int, *, wait_s: float) -> None:
        header = event.header
        sample_ids = self._spec.sample_ids(event)
        count = sample_ids.size
        part = self._spec.part(
            header.position, rank=self._seat.rank, world_size=self._generation.world_size
        )
        digest = order_sum(sample_ids, epoch=header.epoch, start=part.start)
        self._recorder.append(
            (
                self._seat.job,
                self._seat.generation,
                self._seat.rank,
                header.pad_count,
                header.epoch,
                header.position,
                count,
                header.payload_bytes,
                id_sum(sample_ids),
                digest,
                time.time(),
                wait_s,
            )
        )
        self._keep_token(event, step, sample_count=count, digest=digest)
        if self._seat.rank == 0 and (step + 1) % self._spec.checkpoint_steps == 0:
            self._tally.checkpoints[step + 1] = header.resume_token
        self._tally.batches += 1
        self._tally.samples += count
        self._tally.payload_bytes += header.payload_bytes
        self._tally.waited_s += wait_s

    def _keep_token(self, event: BatchEvent, step: int, *, sample_count: int, digest: int) -> None:
        header = event.header
        if self._kept is not None and self._kept[0] + 1 == step:
            following = NextBatch(
                self._seat, self._kept[1], header.epoch, header.position, sample_count, digest
            )
            self.result.next_batches.append(following)
        self._kept = (step, header.resume_token) if step in self._token_steps else None
        self.result.last_token = header.resume_token

    def _choose_steps(self) -> frozenset[int]:
        steps = range(self._generation.first_step, self._generation.end_step)
        count = min(self._spec.token_samples, len(steps))
        return frozenset(self._random.sample(steps, count))

    def _rest(self, step: int) -> None:
        rest_s = self._spec.step_s
        for pause in self._spec.pauses:
            if pause.rank == self._seat.rank and int(self._spec.steps * pause.share) == step - 1:
                rest_s += pause.seconds
        if rest_s:
            self._stop.wait(rest_s)

    def _note_failure(self, error: HeadraceError) -> None:
        self.result.failures[error.reason] += 1
