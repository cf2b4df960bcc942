"""Apply the stages of a stream to its batches: images, casts, transforms.

Contract:

1. A batch is gathered in one piece, and the stages make a second one from it. If samples turn out
   to be damaged, it is made once more with others in their place.
2. While the images of a batch are made, the next batch is started, so that the threads that make
   images always have work; also if it is the first of the next epoch. Its memory is claimed in
   addition to that of the batch before. If there is not enough memory, or its blocks are not
   cached, it is started when its turn comes.
3. A failure of a batch that was started early is raised when its turn comes.
4. While stages run, the stream sends heartbeats, and it can be ended between two rows.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Protocol

from headrace.errors import BadArgumentError, HeadraceError, StageFailedError
from headrace.server.batch.batch_values import Claim
from headrace.server.batch.stage import Running
from headrace.server.batch.targets import Outlet
from headrace.server.batch.titles import sample_title
from headrace.server.plan.planned_batches import Planned, PlannedBatch
from headrace.server.shares import Share, ShortError
from headrace.server.stream.batch_maker import EncodedBatches
from headrace.server.stream.fair_turns import StreamTurns
from headrace.server.stream.pipeline import Pipeline
from headrace.server.stream.running_batch import Outcome, RunningBatch
from headrace.server.stream.stream_setup import Contents, batch_header
from headrace.v1 import shard_service_pb2 as pb

_FIRST_S = 1.0


class Gathering(Protocol):
    """The stream, as `StagedBatches` needs it."""

    def plan(self) -> Planned | None:
        """Plan the next batches or end of an epoch; None after the last epoch."""

    def gather(self, planned: PlannedBatch) -> EncodedBatches | None:
        """Make a batch if its blocks are in memory."""

    def gather_late(self, planned: PlannedBatch) -> Generator[bytes, None, EncodedBatches | None]:
        """Wait for the blocks of a batch, with heartbeats, and make it."""

    def check_ending(self) -> None:
        """Raise the error that ends the stream, if there is one."""

    def heartbeat(self, waited_s: float) -> bytes:
        """Return a heartbeat that states how long the stream has waited."""


class StagedBatches:
    """Applies the stages of one stream to its batches; the contract is above.

    Args:
        contents: The contents of the stream.
        pipeline: The stages.
        outlet: Where to write batches.
        turns: The turns of the stream's caller.
        share: The stream's share of the server's memory.
        stage_timeout_s: How long a stage may process a batch.
        heartbeat_s: Seconds between heartbeats.
    """

    def __init__(
        self,
        contents: Contents,
        pipeline: Pipeline,
        *,
        outlet: Outlet,
        turns: StreamTurns,
        share: Share,
        stage_timeout_s: float,
        heartbeat_s: float,
    ) -> None:
        self._contents = contents
        self._pipeline = pipeline
        self._outlet = outlet
        self._turns = turns
        self._share = share
        self._stage_timeout_s = stage_timeout_s
        self._heartbeat_s = heartbeat_s
        self._usual_bytes = 0
        # The next batch, if it is started; its plan, behind the end of the epoch if that comes
        # first; whether it may be started; and the memory of the batch before it.
        self._ahead: RunningBatch | None = None
        self._planned: deque[Planned] = deque()
        # Why nothing could be planned after these.
        self._failure: HeadraceError | None = None
        self._may_start = False
        self._beside_bytes = 0

    @property
    def is_ahead(self) -> bool:
        """Whether the next batch has been started."""
        return self._ahead is not None

    @property
    def ahead_bytes(self) -> int:
        """Bytes that were claimed for the next batch so far."""
        return 0 if self._ahead is None else self._ahead.claimed

    def claim(self, size: int) -> None:
        """Claim memory for the current batch, in addition to that of the batch before.

        Raises:
            ShortError: There is not enough memory.
        """
        self._share.claim(self._beside_bytes + size)

    def close(self) -> None:
        """Give up the batch that was started early."""
        if self._ahead is not None:
            self._ahead.close()

    def take_planned(self) -> Planned | None:
        """Return what was planned early and comes next, once; None if nothing was.

        Raises:
            HeadraceError: It could not be planned.
        """
        if self._planned:
            return self._planned.popleft()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return None

    def make(
        self, planned: PlannedBatch, stream: Gathering
    ) -> Generator[bytes, None, tuple[EncodedBatches, int]]:
        """Make a batch; return it, and the number of damaged samples that were replaced.

        Raises:
            StageFailedError: A stage cannot process this batch, or takes too long.
            ShortError: There is not enough memory.
        """
        running, self._ahead = self._ahead, None
        self._beside_bytes = 0
        substitutes = self._pipeline.substitutes
        known = set() if substitutes is None else substitutes.known()
        while True:
            if running is None:
                replaced = planned if substitutes is None else substitutes.replaced(planned, known)
                gathered = stream.gather(replaced)
                if gathered is None:
                    gathered = yield from stream.gather_late(replaced)
                assert gathered is not None
                running = self._started(replaced, gathered)
            with closing(running):
                yield from self._run_stages(running, stream)
            try:
                made, damaged_rows = running.result()
            except StageFailedError as error:
                raise self._with_sample(error, running.planned) from error
            if made is not None:
                damaged = running.planned.damaged
                return made, 0 if damaged is None else damaged.size
            assert substitutes is not None
            substitutes.note(running.planned, damaged_rows, known)
            running = None

    def _started(self, planned: PlannedBatch, gathered: EncodedBatches) -> RunningBatch:
        ((message, _),), (size,) = gathered.messages, gathered.sizes
        payload = memoryview(message)[len(message) - size :]
        work = partial(self._work, payload, gathered.buffer_bytes[0])
        return RunningBatch(planned, work, claimed=len(message))

    def _work(
        self, payload: memoryview, buffer_bytes: tuple[int, ...], running: RunningBatch
    ) -> Running[Outcome]:
        planned, pipeline, timeout_s = running.planned, self._pipeline, self._stage_timeout_s
        claim = self._claim_beside(running)
        # Claims at once what the batch before took, because too small a claim means starting over.
        usual_bytes, self._usual_bytes = self._usual_bytes, 0
        with suppress(BadArgumentError):
            claim(usual_bytes)
        batch = yield from pipeline.prepare(
            planned, payload, buffer_bytes, turns=self._turns, timeout_s=timeout_s, claim=claim
        )
        if batch.damaged:
            return None, batch.damaged
        header = batch_header(planned)
        self._describe_damaged(header, planned)
        placed = pipeline.place(
            batch, header, payload=payload, places=self._outlet.places(), claim=claim
        )
        running.is_placed = True
        messages = yield from pipeline.fill(placed, turns=self._turns, timeout_s=timeout_s)
        return EncodedBatches(messages, [header.payload_bytes], [tuple(header.buffer_bytes)]), ()

    def _describe_damaged(self, header: pb.BatchHeader, planned: PlannedBatch) -> None:
        if planned.damaged is None:
            return
        shown = self._contents.shown_ids(planned.damaged)
        if shown.ndim > 1:
            header.damaged_dataset_indices.extend(shown[:, 0].tolist())
            shown = shown[:, 1]
        header.damaged_sample_ids.extend(shown.tolist())

    def _claim_beside(self, running: RunningBatch) -> Claim:
        gathered_bytes = running.claimed

        def claim(more: int) -> None:
            self._usual_bytes = max(self._usual_bytes, more)
            running.claimed = gathered_bytes + more
            self.claim(running.claimed)

        return claim

    def _run_stages(self, running: RunningBatch, stream: Gathering) -> Generator[bytes, None, None]:
        """Apply the stages to a batch, and to the next one as far as possible meanwhile."""
        self._outlet.flush()
        began = time.monotonic()
        # The first heartbeat soon says for what the stream waits.
        reported = began + min(0.0, _FIRST_S - self._heartbeat_s)
        self._may_start = self._pipeline.is_ahead
        while True:
            running.advance()
            if running.is_placed and running.failure is None:
                self._advance_ahead(running, stream)
            if running.is_over:
                return
            stream.check_ending()
            if running.is_idle and (self._ahead is None or self._ahead.is_idle):
                running.wait()
            now = time.monotonic()
            if now - reported >= self._heartbeat_s:
                reported = now
                yield stream.heartbeat(now - began)

    def _advance_ahead(self, running: RunningBatch, stream: Gathering) -> None:
        """Start or continue the next batch while one is written, without waiting."""
        if (
            self._ahead is None
            and self._may_start
            and not running.is_over
            and self._outlet.has_room()
        ):
            self._beside_bytes = running.claimed
            self._ahead = self._start_ahead(stream)
        if self._ahead is not None:
            self._ahead.advance()
            if isinstance(self._ahead.failure, ShortError):
                self._ahead = None
        if self._ahead is None and self._beside_bytes:
            # The batch is started when its turn comes.
            self._may_start, self._beside_bytes = False, 0
            self._share.claim(running.claimed)

    def _start_ahead(self, stream: Gathering) -> RunningBatch | None:
        batches = self._plan_ahead(stream)
        if not batches:
            return None
        (planned,) = batches
        substitutes = self._pipeline.substitutes
        try:
            if substitutes is not None:
                planned = substitutes.replaced(planned, substitutes.known())
            gathered = stream.gather(planned)
        except (ShortError, HeadraceError):
            return None
        return None if gathered is None else self._started(planned, gathered)

    def _plan_ahead(self, stream: Gathering) -> Sequence[PlannedBatch]:
        """Plan the next batch, and the end of the epoch before it; return the batch if there is."""
        # At most one end: there may be epochs without any batch.
        while not self._planned or (len(self._planned) == 1 and not self._planned[0][0]):
            if self._failure is not None:
                return ()
            try:
                planned = stream.plan()
            except HeadraceError as error:
                # Errors that end the stream are raised at once, others in the batch's turn.
                stream.check_ending()
                self._failure = error
                return ()
            if planned is None:
                return ()
            self._planned.append(planned)
        return self._planned[-1][0]

    def _with_sample(self, error: StageFailedError, planned: PlannedBatch) -> StageFailedError:
        """Return an error about a row with the name of its sample."""
        if "row" not in error.metadata:
            return error
        row = int(error.metadata["row"])
        shown = self._contents.shown_ids(planned.found.item_ids[row : row + 1])
        sample = int(shown.ravel()[-1])
        return StageFailedError(
            f"{error.message}; it is {sample_title(shown)} (`headrace cat URL --ids {sample}`), "
            f"which skips=[{sample}] leaves out",
            **error.metadata,
            sample_id=sample,
        )
