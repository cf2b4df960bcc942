"""All steps of one stream: checked at its begin, applied to each batch after the other."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, StepFailedError
from headrace.order import EndMode, sample_keys
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import (
    Batch,
    Claim,
    batch_messages,
    made_bytes,
    split_payload,
)
from headrace.server.batch.targets import Finished, Places
from headrace.server.layout.wire_columns import WireColumn, refuse_large
from headrace.server.plan.planned_batches import PlannedBatch
from headrace.server.steps.augment_image import AugmentImage
from headrace.server.steps.column_steps import Cast, Pad, Stack, Step, Work
from headrace.server.steps.decode_image import DecodeImage
from headrace.server.steps.pack import Pack
from headrace.server.steps.transform_pool import TransformPool
from headrace.server.steps.transform_step import TransformStep
from headrace.server.stream.fair_turns import CallerTurns, StreamTurns
from headrace.v1 import shard_service_pb2 as pb

AnyStep: TypeAlias = Step | TransformStep | AugmentImage

_MAX_STEPS = 64
# Rows that take less together have one turn (arbitrary: a signal of life costs nothing then).
_TURN_S = 0.005


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What is done with every batch of a stream before it is sent.

    Attributes:
        before: The columns as they are gathered.
        after: The columns as they are sent.
        steps: What makes these of those.
        seed: Of the order.
        max_batch_bytes: Greatest payload.
    """

    before: tuple[WireColumn, ...]
    after: tuple[WireColumn, ...]
    steps: tuple[AnyStep, ...]
    seed: int
    max_batch_bytes: int

    def run(
        self,
        planned: PlannedBatch,
        payload: memoryview,
        buffer_bytes: Sequence[int],
        *,
        turns: StreamTurns,
        timeout_s: float,
        claim: Claim,
    ) -> Generator[None, None, Batch]:
        """Take all steps with a batch; yields now and then while it works and waits.

        Args:
            planned: The batch.
            payload: Its columns as they were gathered.
            buffer_bytes: The length of each of their buffers.
            turns: Of the stream; as many work as there are processors.
            timeout_s: How long each step may work on it; transforms have a time of their own.
            claim: Is told how much memory the steps take besides, before they take it.

        Raises:
            StepFailedError: A step cannot be done with this batch, or takes too long.
        """
        count = planned.sample_count
        columns = split_payload(self.before, payload, buffer_bytes, row_count=count)
        batch = Batch(columns, count, self._keys(planned))
        for step in self.steps:
            made = made_bytes(batch, payload)
            if isinstance(step, TransformStep):
                batch = yield from step.run(batch, claim=_added(claim, made))
            elif isinstance(step, AugmentImage):
                batch = yield from step.run(
                    batch,
                    pool=turns.rows,
                    caller=turns.steps,
                    timeout_s=timeout_s,
                    claim=_added(claim, made),
                )
            else:
                claim(made + step.cost(batch))
                batch = yield from _in_time(step, batch, turns.steps, timeout_s)
        return batch

    def _keys(self, planned: PlannedBatch) -> NDArray[np.uint64]:
        part = planned.part
        if planned.positions is not None:
            return sample_keys(self.seed, planned.epoch, planned.positions)
        pads = np.array(part.pad_positions, np.int64)
        positions = np.concatenate([np.arange(part.start, part.stop), pads])
        return sample_keys(self.seed, planned.epoch, positions)

    def messages(
        self,
        batch: Batch,
        header: pb.BatchHeader,
        *,
        payload: memoryview,
        places: Places,
        claim: Claim,
    ) -> list[Finished]:
        """Return the messages of a batch that went through the steps.

        Args:
            batch: Its columns.
            header: Its head; the fields about the payload are filled in.
            payload: As for `run`.
            places: Says where it goes.
            claim: As for `run`.

        Raises:
            BadArgumentError: The payload would pass the limit.
        """
        if batch.row_count != header.sample_count:
            header.row_count = batch.row_count
        header.overflow_sample_count = batch.overflow_sample_count
        header.overflow_element_count = batch.overflow_element_count
        made = made_bytes(batch, payload)
        return batch_messages(
            batch,
            header,
            max_batch_bytes=self.max_batch_bytes,
            places=places,
            claim=_added(claim, made),
        )


def _added(claim: Claim, size: int) -> Claim:
    return lambda more: claim(size + more)


def _in_time(step: Step, batch: Batch, turns: CallerTurns, timeout_s: float) -> Work[Batch]:
    """Run a step; the time in which others have their turns does not count."""
    worked_s = 0.0
    with closing(step.run(batch)) as work:
        while worked_s < timeout_s:
            yield from turns.queued()
            began = time.monotonic()
            try:
                while time.monotonic() - began < _TURN_S:
                    next(work)
            except StopIteration as end:
                made: Batch = end.value
                return made
            finally:
                took_s = time.monotonic() - began
                turns.end_worked(took_s)
            worked_s += took_s
            yield
    name = type(step).__name__
    raise StepFailedError(
        f"{name} worked longer than {timeout_s:g} s on a batch of {batch.row_count} rows; use "
        "smaller batches, or let the operator set step_timeout_s",
        step=name,
    )


def make_pipeline(
    messages: Sequence[pb.BatchStep],
    columns: Sequence[WireColumn],
    *,
    row_count: int,
    end: EndMode,
    seed: int,
    max_batch_bytes: int,
    transforms: TransformPool,
) -> Pipeline:
    """Return the steps of a request.

    Args:
        messages: The steps as they came.
        columns: The columns before them, the server's own included.
        row_count: Most rows of a batch.
        end: What becomes of an incomplete last batch.
        seed: Of the order.
        max_batch_bytes: Greatest payload, also between two steps.
        transforms: Those that are registered.

    Raises:
        BadArgumentError: A step cannot be done.
        ConfigurationError: This server lacks what a step needs.
    """
    _check_places(messages, end)
    now = {column.name: column for column in columns}
    steps: list[AnyStep] = []
    for place, message in enumerate(messages):
        step = _step(message, place, transforms)
        _check_own(message)
        now = step.columns(now)
        if isinstance(step, Pack):
            row_count = step.row_count
        size = row_count * sum(column.item_bytes for column in now.values() if column.is_tensor)
        refuse_large(size, max_batch_bytes)
        steps.append(step)
    return Pipeline(tuple(columns), tuple(now.values()), tuple(steps), seed, max_batch_bytes)


def _step(message: pb.BatchStep, place: int, transforms: TransformPool) -> AnyStep:  # noqa: PLR0911 - one for each kind
    kind = message.WhichOneof("step")
    if kind == "cast":
        return Cast(message.cast)
    if kind == "pad":
        return Pad(message.pad)
    if kind == "stack":
        return Stack(message.stack)
    if kind == "decode_image" and message.decode_image.transforms:
        return AugmentImage(message.decode_image, place)
    if kind == "decode_image":
        return DecodeImage(message.decode_image)
    if kind == "transform":
        return TransformStep(message.transform, transforms)
    if kind == "pack":
        return Pack(message.pack)
    raise BadArgumentError(
        "a step is none that this server knows; use a newer server", field="steps"
    )


def _check_places(messages: Sequence[pb.BatchStep], end: EndMode) -> None:
    if len(messages) > _MAX_STEPS:
        raise BadArgumentError(
            f"the request has {len(messages)} steps; {_MAX_STEPS} is the most", field="steps"
        )
    packs = [place for place, step in enumerate(messages) if step.HasField("pack")]
    if packs and packs != [len(messages) - 1]:
        raise BadArgumentError("pack must be the last step, and come once", field="steps")
    if packs and end is EndMode.PAD:
        raise BadArgumentError(
            "pack fills rows up itself, so end must not be END_MODE_PAD with it", field="end"
        )


def _check_own(message: pb.BatchStep) -> None:
    kind = message.WhichOneof("step")
    if kind is not None and getattr(getattr(message, kind), "column", "") == SAMPLE_ID_COLUMN:
        raise BadArgumentError(
            f"{kind}: column {SAMPLE_ID_COLUMN!r} is the server's own and stays as it is",
            field="steps",
        )
