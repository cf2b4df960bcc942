"""The stages of one stream: checked when it starts, and applied to each batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from headrace.errors import StageFailedError
from headrace.order import sample_keys
from headrace.server.batch.batch_values import (
    Batch,
    Claim,
    Group,
    PlacedBatch,
    made_bytes,
    make_now,
    place_batch,
    split_payload,
    write_batch,
)
from headrace.server.batch.row_pool import Waits, Workers
from headrace.server.batch.stage import Accompany, Replacement, Running, Stage, Work
from headrace.server.batch.targets import Finished, Places
from headrace.server.layout.wire_columns import WireColumn, refuse_large
from headrace.server.plan.planned_batches import PlannedBatch
from headrace.server.plan.substitutes import Substitutes
from headrace.server.stream.fair_turns import CallerTurns, StreamTurns
from headrace.server.stream.stage_plugs import Asked, Facts
from headrace.v1 import shard_service_pb2 as pb

_Made = TypeVar("_Made")

# Rows that take less than this together share one turn (arbitrary: heartbeats cost little then).
_TURN_S = 0.005


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages that every batch of a stream goes through before it is sent.

    Attributes:
        before: The columns that are gathered.
        after: The columns that are sent.
        stages: The stages from the former to the latter.
        seed: The seed of the order.
        max_batch_bytes: The largest payload.
        is_as_stored: Whether a row is gathered for each sample as it is stored, from which the
            first stage makes the rows of the order.
        substitutes: Replaces samples that a stage cannot use; None if they are errors.
    """

    before: tuple[WireColumn, ...]
    after: tuple[WireColumn, ...]
    stages: tuple[Stage, ...]
    seed: int
    max_batch_bytes: int
    is_as_stored: bool = False
    substitutes: Substitutes | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether a batch may be prepared while the one before is written."""
        return all(stage.runs_ahead for stage in self.stages)

    @property
    def replacement(self) -> Replacement | None:
        """How samples are replaced that a stage cannot use; None if they are errors."""
        found = [each for stage in self.stages if (each := stage.replacement) is not None]
        if not found:
            return None
        return replace(found[0], use="\n".join(sorted(each.use for each in found)))

    @property
    def accompany(self) -> Accompany | None:
        """Finds the samples that a stage needs in addition to a rank's; None if none does."""
        found = (stage.accompany for stage in self.stages)
        return next((each for each in found if each is not None), None)

    def prepare(
        self,
        planned: PlannedBatch,
        payload: memoryview,
        buffer_bytes: Sequence[int],
        *,
        turns: StreamTurns,
        timeout_s: float,
        claim: Claim,
    ) -> Running[Batch]:
        """Apply all stages to a batch, except for columns that are made in their place.

        Args:
            planned: The batch.
            payload: The gathered columns.
            buffer_bytes: The length of each of their buffers.
            turns: The stream's turns; as many threads work as there are processors.
            timeout_s: How long each stage may take; transforms have their own timeout.
            claim: Claims the memory of stages before it is used.

        Raises:
            StageFailedError: A stage cannot process this batch, or takes too long.
        """
        workers = Workers(turns.rows, turns.stages.name, timeout_s)
        row_count = planned.found.sample_ids.size if self.is_as_stored else planned.row_count
        columns = split_payload(self.before, payload, buffer_bytes, row_count=row_count)
        keys = sample_keys(self.seed, planned.epoch, planned.positions)
        batch = Batch(columns, row_count, keys, self._group(planned), planned.found)
        for stage in self.stages:
            if not stage.takes_unmade:
                batch = yield from _all_made(batch, payload, workers, claim)
            context = _Context(workers, turns.stages, _added(claim, made_bytes(batch, payload)))
            batch = yield from stage.run(batch, context)
            if batch.damaged:
                break
        return batch

    def place(
        self,
        batch: Batch,
        header: pb.BatchHeader,
        *,
        payload: memoryview,
        places: Places,
        claim: Claim,
    ) -> PlacedBatch:
        """Take a place for a batch; no memory is claimed after that.

        Args:
            batch: The batch.
            header: The header; the fields about the payload are filled in.
            payload: See `prepare`.
            places: Gives the place.
            claim: See `prepare`.

        Raises:
            BadArgumentError: The payload would exceed the limit.
        """
        laters = [each.later for each in batch.columns.values()]
        beside = sum(0 if later is None else later.beside_bytes for later in laters)
        return place_batch(
            batch,
            header,
            max_batch_bytes=self.max_batch_bytes,
            places=places,
            claim=_added(claim, made_bytes(batch, payload) + beside),
        )

    def fill(
        self, placed: PlacedBatch, *, turns: StreamTurns, timeout_s: float
    ) -> Waits[list[Finished]]:
        """Write a batch into its place, and return its messages.

        Args:
            placed: The batch and its place.
            turns: The turns of the stream.
            timeout_s: How long a column may take that is not made yet.

        Raises:
            StageFailedError: A value cannot be made, or it takes too long.
        """
        return write_batch(placed, Workers(turns.rows, turns.stages.name, timeout_s, line=turns))

    def _group(self, planned: PlannedBatch) -> Group | None:
        if planned.companions is None:
            return None
        # The key of the global batch's first sample, which is the same for all ranks.
        first = np.array([planned.part.position])
        (key,) = sample_keys(self.seed, planned.epoch, first).tolist()
        return Group(key, planned.companions.rows)


def _all_made(batch: Batch, payload: memoryview, workers: Workers, claim: Claim) -> Waits[Batch]:
    """Make the columns of a batch that are not made yet."""
    columns = dict(batch.columns)
    for name, each in columns.items():
        if each.later is not None:
            size = made_bytes(batch, payload) + each.values.nbytes + each.later.beside_bytes
            claim(size)
            columns[name] = yield from make_now(each, workers)
            batch = replace(batch, columns=dict(columns))
    return batch


@dataclass(frozen=True, slots=True)
class _Context:
    """What one stage may use for a batch; see `headrace.server.batch.stage.Context`."""

    workers: Workers
    turns: CallerTurns
    claim_all: Claim

    def claim(self, size: int) -> None:
        self.claim_all(size)

    def in_turns(self, stage: str, row_count: int, work: Work[_Made]) -> Work[_Made]:
        """Work when it is the caller's turn; the time that is spent waiting does not count."""
        worked_s, timeout_s = 0.0, self.workers.timeout_s
        with closing(work):
            while worked_s < timeout_s:
                yield from self.turns.queued()
                began = time.monotonic()
                try:
                    while time.monotonic() - began < _TURN_S:
                        next(work)
                except StopIteration as end:
                    made: _Made = end.value
                    return made
                finally:
                    took_s = time.monotonic() - began
                    self.turns.end_worked(took_s)
                worked_s += took_s
                yield
        raise StageFailedError(
            f"{stage} worked longer than {timeout_s:g} s on a batch of {row_count} rows; use "
            "smaller batches, or ask the operator to raise stage_timeout_s",
            stage=stage,
        )


def _added(claim: Claim, size: int) -> Claim:
    return lambda more: claim(size + more)


def make_pipeline(
    asked: Sequence[Asked],
    columns: Sequence[WireColumn],
    *,
    row_count: int,
    seed: int,
    max_batch_bytes: int,
    class_counts: Mapping[str, int] | None = None,
    first: tuple[WireColumn, Stage] | None = None,
) -> Pipeline:
    """Return the stages of a request.

    Args:
        asked: The stages that it asks for.
        columns: The columns before them, including the server's own.
        row_count: The most rows of a batch.
        seed: The seed of the order.
        max_batch_bytes: The largest payload, also between two stages.
        class_counts: The number of classes that the dataset names, by column.
        first: The column that is gathered instead, and the stage that makes `columns` from it; None
            if they are gathered themselves.

    Raises:
        BadArgumentError: A stage is not possible.
        ConfigurationError: This server lacks what a stage needs.
    """
    now = {column.name: column for column in columns}
    stages = [] if first is None else [first[1]]
    options = [each.options for each in asked]
    for place, kind, own in asked:
        stage = kind.make(own, Facts(place, options, class_counts or {}))
        now = stage.columns(now)
        size = row_count * sum(column.item_bytes for column in now.values() if column.is_tensor)
        refuse_large(size, max_batch_bytes)
        stages.append(stage)
    return Pipeline(
        before=tuple(columns) if first is None else (first[0],),
        after=tuple(now.values()),
        stages=tuple(stages),
        seed=seed,
        max_batch_bytes=max_batch_bytes,
        is_as_stored=first is not None,
    )
