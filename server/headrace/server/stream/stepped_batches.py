"""The batches of a stream that go through steps: images, casts, transforms.

Contract:

1. A batch is gathered in one piece, and a second one is made of it by all steps. Where samples turn
   out to be damaged it is made once more, with others in their place.
2. While the images of a batch are made, the next batch is begun, so that the threads that make
   images always find some. Its memory is claimed beside that of the batch before it; where there is
   not enough, or its blocks are not in memory, it is begun when its turn comes.
3. What goes wrong with a batch that was begun early is raised when its turn comes.
4. While steps work the stream shows signs of life, and it can be ended between two rows.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing, suppress
from functools import partial
from typing import Protocol

from headrace.errors import BadArgumentError, HeadraceError, StepFailedError
from headrace.server.batch.batch_values import Claim
from headrace.server.batch.targets import Outlet
from headrace.server.plan.planned_batches import PlannedBatch, PlannedEnd
from headrace.server.shares import Share, ShortError
from headrace.server.stream.batch_maker import Made
from headrace.server.stream.begun_batch import BegunBatch, Damaged
from headrace.server.stream.fair_turns import StreamTurns
from headrace.server.stream.pipeline import Pipeline, Steps
from headrace.server.stream.stream_setup import Contents, batch_header, sample_title
from headrace.v1 import shard_service_pb2 as pb


class Gathering(Protocol):
    """What batches in steps need of their stream."""

    def take(self) -> list[PlannedBatch] | PlannedEnd | None:
        """Return what comes next in the plan; None after the last epoch."""

    def gather(self, planned: PlannedBatch) -> Made | None:
        """Make a batch if its blocks are in memory."""

    def gather_late(self, planned: PlannedBatch) -> Generator[bytes, None, Made | None]:
        """Wait for the blocks of a batch, with signs of life, and make it."""

    def check_ending(self) -> None:
        """Raise what ends the stream, if anything does."""

    def heartbeat(self, waited_s: float) -> bytes:
        """Return a message that says how long the stream has waited."""


class SteppedBatches:
    """Takes the batches of one stream through its steps; the contract is above.

    Args:
        contents: What the stream sends.
        pipeline: Its steps.
        outlet: Where batches go.
        turns: The turns of the stream's caller.
        share: The stream's part of the server's memory.
        step_timeout_s: How long one step may work on a batch.
        heartbeat_s: Time between two signs of life.
    """

    def __init__(
        self,
        contents: Contents,
        pipeline: Pipeline,
        *,
        outlet: Outlet,
        turns: StreamTurns,
        share: Share,
        step_timeout_s: float,
        heartbeat_s: float,
    ) -> None:
        self._contents = contents
        self._pipeline = pipeline
        self._outlet = outlet
        self._turns = turns
        self._share = share
        self._step_timeout_s = step_timeout_s
        self._heartbeat_s = heartbeat_s
        self._usual_bytes = 0
        # The batch after the one that is being written, if it is begun; what was planned of it; and
        # whether it may be begun, and what the one before it takes meanwhile.
        self._ahead: BegunBatch | None = None
        self._planned: list[PlannedBatch] | PlannedEnd | HeadraceError | None = None
        self._may_begin = False
        self._beside_bytes = 0

    @property
    def is_ahead(self) -> bool:
        """Return whether the next batch is begun."""
        return self._ahead is not None

    @property
    def ahead_bytes(self) -> int:
        """Return what the making of the next batch takes so far."""
        return 0 if self._ahead is None else self._ahead.claimed

    def claim(self, size: int) -> None:
        """Claim memory for the batch that is made, beside what the one before it takes.

        Raises:
            ShortError: There is not enough.
        """
        self._share.claim(self._beside_bytes + size)

    def close(self) -> None:
        """Give up the batch that was begun early."""
        if self._ahead is not None:
            self._ahead.close()

    def take_planned(self) -> list[PlannedBatch] | PlannedEnd | None:
        """Return what was planned early, once.

        Raises:
            HeadraceError: It could not be planned.
        """
        planned, self._planned = self._planned, None
        if isinstance(planned, HeadraceError):
            raise planned
        return planned

    def make(
        self, planned: PlannedBatch, stream: Gathering
    ) -> Generator[bytes, None, tuple[Made, int]]:
        """Make a batch; return it, and how many damaged samples others stand in for.

        Raises:
            StepFailedError: A step cannot be done with this batch, or takes too long.
            ShortError: There is not enough memory.
        """
        begun, self._ahead = self._ahead, None
        self._beside_bytes = 0
        substitutes = self._contents.substitutes
        known = set() if substitutes is None else substitutes.known()
        while True:
            if begun is None:
                replaced = planned if substitutes is None else substitutes.replaced(planned, known)
                gathered = stream.gather(replaced)
                if gathered is None:
                    gathered = yield from stream.gather_late(replaced)
                assert gathered is not None
                begun = self._begun(replaced, gathered)
            with closing(begun):
                yield from self._stepped(begun, stream)
            try:
                made = begun.result()
            except StepFailedError as error:
                raise self._naming(error, begun.planned) from error
            if isinstance(made, Made):
                damaged = begun.planned.damaged
                return made, 0 if damaged is None else damaged.size
            assert substitutes is not None
            substitutes.note(begun.planned, made.rows, known)
            begun = None

    def _begun(self, planned: PlannedBatch, gathered: Made) -> BegunBatch:
        ((message, _),), (size,) = gathered.messages, gathered.sizes
        payload = memoryview(message)[len(message) - size :]
        work = partial(self._work, payload, gathered.buffer_bytes[0])
        return BegunBatch(planned, work, claimed=len(message))

    def _work(
        self, payload: memoryview, buffer_bytes: tuple[int, ...], begun: BegunBatch
    ) -> Steps[Made | Damaged]:
        planned, pipeline, timeout_s = begun.planned, self._pipeline, self._step_timeout_s
        claim = self._claim_beside(begun)
        # All at once what the batch before took, since it is done again where that is too little.
        usual_bytes, self._usual_bytes = self._usual_bytes, 0
        with suppress(BadArgumentError):
            claim(usual_bytes)
        prepared = yield from pipeline.prepare(
            planned, payload, buffer_bytes, turns=self._turns, timeout_s=timeout_s, claim=claim
        )
        if prepared.damaged:
            return Damaged(prepared.damaged)
        header = batch_header(planned)
        self._describe_damaged(header, planned)
        placed = pipeline.place(
            prepared, header, payload=payload, places=self._outlet.places(), claim=claim
        )
        begun.is_placed = True
        messages = yield from pipeline.fill(
            prepared, placed, turns=self._turns, timeout_s=timeout_s
        )
        return Made(messages, [header.payload_bytes], [tuple(header.buffer_bytes)])

    def _describe_damaged(self, header: pb.BatchHeader, planned: PlannedBatch) -> None:
        if planned.damaged is None:
            return
        shown = self._contents.shown_ids(planned.damaged)
        if shown.ndim > 1:
            header.damaged_dataset_indices.extend(shown[:, 0].tolist())
            shown = shown[:, 1]
        header.damaged_sample_ids.extend(shown.tolist())

    def _claim_beside(self, begun: BegunBatch) -> Claim:
        gathered_bytes = begun.claimed

        def claim(more: int) -> None:
            self._usual_bytes = max(self._usual_bytes, more)
            begun.claimed = gathered_bytes + more
            self.claim(begun.claimed)

        return claim

    def _stepped(self, begun: BegunBatch, stream: Gathering) -> Generator[bytes, None, None]:
        """Take a batch through the steps, and the next one as far as it goes meanwhile."""
        self._outlet.flush()
        began = said = time.monotonic()
        self._may_begin = self._pipeline.is_ahead
        while True:
            begun.go_on()
            if begun.is_placed and begun.failure is None:
                self._go_on_ahead(begun, stream)
            if begun.is_over:
                return
            stream.check_ending()
            if begun.is_idle and (self._ahead is None or self._ahead.is_idle):
                begun.wait()
            now = time.monotonic()
            if now - said >= self._heartbeat_s:
                said = now
                yield stream.heartbeat(now - began)

    def _go_on_ahead(self, begun: BegunBatch, stream: Gathering) -> None:
        """Begin the batch after one that is being written, or go on with it; wait for nothing."""
        if (
            self._ahead is None
            and self._may_begin
            and not begun.is_over
            and self._outlet.has_room()
        ):
            self._beside_bytes = begun.claimed
            self._ahead = self._begun_ahead(stream)
        if self._ahead is not None:
            self._ahead.go_on()
            if isinstance(self._ahead.failure, ShortError):
                self._ahead = None
        if self._ahead is None and self._beside_bytes:
            # Then it is begun when its turn comes.
            self._may_begin, self._beside_bytes = False, 0
            self._share.claim(begun.claimed)

    def _begun_ahead(self, stream: Gathering) -> BegunBatch | None:
        if self._planned is None:
            try:
                self._planned = stream.take()
            except HeadraceError as error:
                # What ends the stream is raised at once, all else when the batch's turn comes.
                stream.check_ending()
                self._planned = error
        if not isinstance(self._planned, list):
            return None
        (planned,) = self._planned
        substitutes = self._contents.substitutes
        try:
            if substitutes is not None:
                planned = substitutes.replaced(planned, substitutes.known())
            gathered = stream.gather(planned)
        except (ShortError, HeadraceError):
            return None
        return None if gathered is None else self._begun(planned, gathered)

    def _naming(self, error: StepFailedError, planned: PlannedBatch) -> StepFailedError:
        """Return an error about a row so that it names the sample."""
        if "row" not in error.metadata:
            return error
        row = int(error.metadata["row"])
        shown = self._contents.shown_ids(planned.found.item_ids[row : row + 1])
        sample = int(shown.ravel()[-1])
        return StepFailedError(
            f"{error.message}; it is {sample_title(shown)} (`headrace cat URL --ids {sample}`), "
            f"which skips=[{sample}] leaves out",
            **error.metadata,
            sample_id=sample,
        )
