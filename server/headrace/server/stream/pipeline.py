"""The steps of one stream: checked when it starts, and applied to each batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, StepFailedError
from headrace.order import sample_keys
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import (
    Batch,
    Claim,
    Partnered,
    PlacedBatch,
    Values,
    made_bytes,
    place_batch,
    split_payload,
    write_batch,
)
from headrace.server.batch.targets import Finished, Places
from headrace.server.layout.wire_columns import WireColumn, refuse_large
from headrace.server.plan.packed_rows import FoundRows
from headrace.server.plan.planned_batches import PlannedBatch
from headrace.server.steps.augment_image import AugmentImage, Images, rows_of
from headrace.server.steps.column_steps import Cast, Pad, Stack, Step, Work
from headrace.server.steps.decode_image import DecodeImage
from headrace.server.steps.mix_images import MIXING, MixImages
from headrace.server.steps.one_hot import OneHot
from headrace.server.steps.pack_texts import PackTexts
from headrace.server.steps.registered import Registered
from headrace.server.steps.row_pool import Waits, Workers
from headrace.server.steps.tokenize_texts import Tokenize
from headrace.server.steps.transform_step import TransformStep
from headrace.server.stream.fair_turns import CallerTurns, StreamTurns
from headrace.v1 import shard_service_pb2 as pb

AnyStep: TypeAlias = Step | TransformStep | AugmentImage | Tokenize

_Made = TypeVar("_Made")

Steps: TypeAlias = Generator[Event | None, None, _Made]
"""Running steps: yields work that other threads do, or None every few milliseconds."""

_MAX_STEPS = 64
# Rows that take less than this together share one turn (arbitrary: heartbeats cost little then).
_TURN_S = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch after all steps, except for the images that the last step makes.

    Attributes:
        batch: The columns.
        images: The images still to be made for one of the columns; None for none.
        damaged: Rows whose images cannot be decoded and are to be replaced; if there are any, this
            batch is discarded.
    """

    batch: Batch
    images: Images | None
    damaged: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps that every batch of a stream goes through before it is sent.

    Attributes:
        before: The columns that are gathered.
        after: The columns that are sent.
        steps: The steps from the former to the latter.
        seed: The seed of the order.
        max_batch_bytes: The largest payload.
        texts: Makes rows from the gathered texts, before all steps; None if rows or samples are
            gathered.
    """

    before: tuple[WireColumn, ...]
    after: tuple[WireColumn, ...]
    steps: tuple[AnyStep, ...]
    seed: int
    max_batch_bytes: int
    texts: PackTexts | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether a batch may be prepared while the images of the one before are made."""
        return self._last_images is not None and not any(
            isinstance(step, TransformStep) for step in self.steps
        )

    @property
    def _last_images(self) -> AugmentImage | None:
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, AugmentImage) else None

    def prepare(
        self,
        planned: PlannedBatch,
        payload: memoryview,
        buffer_bytes: Sequence[int],
        *,
        turns: StreamTurns,
        timeout_s: float,
        claim: Claim,
    ) -> Steps[Prepared]:
        """Apply all steps to a batch, except for the images that the last step makes.

        Args:
            planned: The batch.
            payload: The gathered columns.
            buffer_bytes: The length of each of their buffers.
            turns: The stream's turns; as many threads work as there are processors.
            timeout_s: How long each step may take; transforms have their own timeout.
            claim: Claims the memory of steps before it is used.

        Raises:
            StepFailedError: A step cannot process this batch, or takes too long.
        """
        workers = Workers(turns.rows, turns.steps, timeout_s)
        columns = yield from self._columns(planned, payload, buffer_bytes, workers, claim)
        keys = sample_keys(self.seed, planned.epoch, planned.positions)
        batch = Batch(columns, planned.row_count, keys, self._partnered(planned))
        for step in self.steps:
            added = _added(claim, made_bytes(batch, payload))
            if isinstance(step, TransformStep):
                batch = yield from step.run(batch, claim=added)
            elif isinstance(step, Tokenize):
                batch = yield from step.run(batch, workers=workers, claim=added)
            elif isinstance(step, AugmentImage):
                images = yield from step.prepare(batch, workers=workers, claim=added)
                if step.may_skip and not images.damaged:
                    added(images.values.nbytes + images.beside_bytes)
                    images = yield from step.decoded(images, workers)
                if images.damaged:
                    return Prepared(batch, None, tuple(sorted(images.damaged)))
                if step is self._last_images:
                    return Prepared(batch, images)
                added(images.values.nbytes + images.beside_bytes)
                batch = yield from self._made(step, batch, images, workers)
            else:
                added(step.cost(batch))
                batch = yield from _in_time(step, batch, turns.steps, timeout_s)
        return Prepared(batch, None)

    def place(
        self,
        prepared: Prepared,
        header: pb.BatchHeader,
        *,
        payload: memoryview,
        places: Places,
        claim: Claim,
    ) -> PlacedBatch:
        """Take a place for a batch; no memory is claimed after that.

        Args:
            prepared: The batch.
            header: The header; the fields about the payload are filled in.
            payload: See `prepare`.
            places: Gives the place.
            claim: See `prepare`.

        Raises:
            BadArgumentError: The payload would exceed the limit.
        """
        batch, images, last = prepared.batch, prepared.images, self._last_images
        beside = made_bytes(batch, payload)
        if images is not None and last is not None:
            beside += images.beside_bytes
            batch = last.with_images(batch, images)
        return place_batch(
            batch,
            header,
            max_batch_bytes=self.max_batch_bytes,
            places=places,
            claim=_added(claim, beside),
        )

    def fill(
        self, prepared: Prepared, placed: PlacedBatch, *, turns: StreamTurns, timeout_s: float
    ) -> Waits[list[Finished]]:
        """Write a batch into its place, including its images, and return its messages.

        Args:
            prepared: The batch.
            placed: The place of the batch.
            turns: The turns of the stream.
            timeout_s: How long the images may take.

        Raises:
            StepFailedError: An image cannot be decoded, or the images take too long.
        """
        images, last = prepared.images, self._last_images
        if images is None or last is None:
            return write_batch(placed, {})

        workers = Workers(turns.rows, turns.steps, timeout_s, line=turns)

        def make(rows: Sequence[NDArray[np.uint8]]) -> Waits[None]:
            return last.make(images, rows, workers)

        return write_batch(placed, {images.values.column.name: make})

    def _made(
        self, step: AugmentImage, batch: Batch, images: Images, workers: Workers
    ) -> Waits[Batch]:
        """Make images that a later step needs."""
        nothing = images.values.values
        made = np.empty(nothing.shape, nothing.dtype)
        yield from step.make(images, rows_of(made), workers)
        return step.with_images(batch, images, made)

    def _partnered(self, planned: PlannedBatch) -> Partnered | None:
        if planned.partners is None:
            return None
        # The key of the global batch's first sample, which is the same for all ranks.
        first = np.array([planned.part.position])
        (key,) = sample_keys(self.seed, planned.epoch, first).tolist()
        return Partnered(key, planned.partners.rows)

    def _columns(
        self,
        planned: PlannedBatch,
        payload: memoryview,
        buffer_bytes: Sequence[int],
        workers: Workers,
        claim: Claim,
    ) -> Waits[dict[str, Values]]:
        """Return the columns before the first step."""
        found = planned.found
        count = planned.row_count if self.texts is None else found.sample_ids.size
        columns = split_payload(self.before, payload, buffer_bytes, row_count=count)
        if self.texts is None:
            return columns
        rows = cast("FoundRows", found)
        (texts,) = columns.values()
        return (
            yield from self.texts.run(
                texts,
                rows.places,
                rows.sample_ids,
                rows.item_ids,
                workers=workers,
                claim=claim,
            )
        )


def _added(claim: Claim, size: int) -> Claim:
    return lambda more: claim(size + more)


def _in_time(step: Step, batch: Batch, turns: CallerTurns, timeout_s: float) -> Work[Batch]:
    """Run a step; the time that it waits for turns does not count."""
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
        "smaller batches, or ask the operator to raise step_timeout_s",
        step=name,
    )


def make_pipeline(
    messages: Sequence[pb.BatchStep],
    columns: Sequence[WireColumn],
    *,
    row_count: int,
    seed: int,
    max_batch_bytes: int,
    registered: Registered,
    class_counts: Mapping[str, int] | None = None,
    texts: tuple[WireColumn, PackTexts] | None = None,
) -> Pipeline:
    """Return the steps of a request.

    Args:
        messages: The steps of the request.
        columns: The columns before the steps, including the server's own.
        row_count: The most rows of a batch.
        seed: The seed of the order.
        max_batch_bytes: The largest payload, also between two steps.
        registered: The registered transforms and tokenizers that steps may name.
        class_counts: The number of classes that the dataset names, by column.
        texts: The column of texts that is gathered instead, and the step that makes these columns
            from it; None if they are gathered themselves.

    Raises:
        BadArgumentError: A step is not possible.
        ConfigurationError: This server lacks what a step needs.
    """
    _check_count(messages)
    now = {column.name: column for column in columns}
    steps: list[AnyStep] = []
    for place, message in enumerate(messages):
        _check_own(message)
        if message.WhichOneof("step") in MIXING:
            _check_behind_images(messages, place)
            continue
        mixing = None
        if place + 1 < len(messages) and messages[place + 1].WhichOneof("step") in MIXING:
            mixing = MixImages(messages[place + 1], place + 1, class_counts or {})
        step = _step(message, place, registered, class_counts or {}, mixing)
        now = step.columns(now)
        size = row_count * sum(column.item_bytes for column in now.values() if column.is_tensor)
        refuse_large(size, max_batch_bytes)
        steps.append(step)
    return Pipeline(
        before=tuple(columns) if texts is None else (texts[0],),
        after=tuple(now.values()),
        steps=tuple(steps),
        seed=seed,
        max_batch_bytes=max_batch_bytes,
        texts=None if texts is None else texts[1],
    )


def _step(
    message: pb.BatchStep,
    place: int,
    registered: Registered,
    class_counts: Mapping[str, int],
    mixing: MixImages | None,
) -> AnyStep:
    kind = message.WhichOneof("step")
    if message.decode_image.transforms:
        return AugmentImage(message.decode_image, place, mixing)
    makers: dict[str, Callable[[], AnyStep]] = {
        "cast": lambda: Cast(message.cast),
        "pad": lambda: Pad(message.pad),
        "stack": lambda: Stack(message.stack),
        "decode_image": lambda: DecodeImage(message.decode_image),
        "one_hot": lambda: OneHot(
            "one_hot", message.one_hot.column, message.one_hot.class_count, class_counts
        ),
        "transform": lambda: TransformStep(message.transform, registered.transforms),
        "tokenize": lambda: Tokenize(message.tokenize, registered.tokenizers),
    }
    if kind not in makers:
        raise BadArgumentError(
            "a step is unknown to this server; use a newer server", field="steps"
        )
    return makers[kind]()


def _check_count(messages: Sequence[pb.BatchStep]) -> None:
    if len(messages) > _MAX_STEPS:
        raise BadArgumentError(
            f"the request has {len(messages)} steps; it must have at most {_MAX_STEPS}",
            field="steps",
        )


def _check_behind_images(messages: Sequence[pb.BatchStep], place: int) -> None:
    kind = messages[place].WhichOneof("step")
    column = getattr(messages[place], str(kind)).column
    before = messages[place - 1].decode_image if place else pb.DecodeImage()
    if place + 1 < len(messages) or not before.transforms or before.column != column:
        raise BadArgumentError(
            f"steps[{place}], {kind}, must be the last step, right after the DecodeImage with "
            f"transforms that makes its column {column!r}",
            field="steps",
        )


def _check_own(message: pb.BatchStep) -> None:
    kind = message.WhichOneof("step")
    if kind is not None and getattr(getattr(message, kind), "column", "") == SAMPLE_ID_COLUMN:
        raise BadArgumentError(
            f"{kind}: column {SAMPLE_ID_COLUMN!r} belongs to the server and cannot be changed",
            field="steps",
        )
