"""One stream of batches.

Contract:

1. Success: a `StreamStart`, then batches in rising position, each complete before anything else is
   sent, an `EpochEnd` after the last batch of each epoch, and the end of the generator after the
   last requested epoch.
2. Waiting: while the store is slow, a `Heartbeat` is sent after a second and then every
   ``heartbeat_s``, between two batches. One is also sent before a batch when the client has not
   been told of 50 ms in which there was nothing to send. After ``store_timeout_s`` without a block
   the stream fails with `StoreUnavailableError`. The same holds while stages process a batch: each
   has ``stage_timeout_s``, and a transform has the timeout of its pool
   (`headrace.server.stages.transforms.transform_pool`).
3. Failure: errors are raised between two batches and never within one, because a batch is read and
   assembled completely before its first message. What was sent stays valid, and its tokens resume
   the run. If several batches are made in one pass (`stream.batch_maker`), this holds for all.
4. Cancellation: `cancel`, from any thread, ends a wait at once, a stage between two rows, and the
   generator before its next batch. Closing the generator has the same effect at any point.
5. Drain and rotation: `interrupt` ends a wait at once and a stage between two rows; the generator
   raises the given error before its next batch.
6. However it ends, the stream leaves no block pinned, and no fetch that only this stream needed
   starts afterwards. `close` does this for a stream whose messages were never read.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from traceback import clear_frames

import numpy as np
from numpy.typing import NDArray

from headrace.errors import (
    HeadraceError,
    PayloadLimitError,
    RebalanceError,
    StoreUnavailableError,
)
from headrace.server.batch.row_pool import RowPool
from headrace.server.batch.targets import ClientGoneError, Outlet, WireOutlet, message_frame
from headrace.server.cache.gather import StagedRows
from headrace.server.cache.readers import Blocks
from headrace.server.plan.planned_batches import Planned, PlannedBatch
from headrace.server.plan.prefetch_blocks import Lookahead, plan_bytes
from headrace.server.shares import Budget, Share, ShortError
from headrace.server.stream.batch_maker import BatchMaker, EncodedBatches
from headrace.server.stream.fair_turns import StreamTurns, Turns
from headrace.server.stream.staged_batches import StagedBatches
from headrace.server.stream.stream_setup import Contents
from headrace.server.telemetry.stream_counts import StreamTally
from headrace.server.telemetry.stream_waits import Waits
from headrace.v1 import shard_service_pb2 as pb

# How long a batch waits for memory while its client has nothing to read (arbitrary). Other streams
# drain within milliseconds, or are recalled within seconds.
_MEMORY_WAIT_S = 20.0
_NO_LIMIT = 1 << 62

_FIRST_S = 1.0
"""So that a client soon knows for what it waits; the others only show that the server is alive."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits of a stream.

    Attributes:
        heartbeat_s: Seconds between heartbeats while the stream waits.
        store_timeout_s: How long the stream waits for a block.
        stage_timeout_s: How long a stage may process a batch.
        lifetime_s: When the client is asked to reconnect; 0 means never.
        max_batch_bytes: The largest payload of one batch.
        prefetch_bytes: Returns the current limit of prefetched bytes.
        spare_bytes: Returns how many bytes the cache has for each job, besides what is shuffled
            together.
    """

    heartbeat_s: float
    store_timeout_s: float
    stage_timeout_s: float
    lifetime_s: float
    max_batch_bytes: int
    prefetch_bytes: Callable[[], int]
    spare_bytes: Callable[[], int] = lambda: 0


class _CancelledError(Exception):
    """The client is gone, so there is nobody to report to."""


class BatchStream:
    """Sends the batches of one stream; the contract is above.

    Args:
        contents: The contents of the stream.
        dataset: The name of its dataset.
        blocks: The blocks that hold the samples.
        limits: The limits of the stream.
        observer: Counts what it sends.
        outlet: Where to write batches; None sends them as messages of the call.
        turns: The turns of the caller, shared with its other streams; None if there are no others.
        share: The stream's share of the server's memory; None for no limit.

    Attributes:
        batch_bytes: Payload bytes of the latest batches that were made together.
        expires_at: The monotonic time at which the client is asked to reconnect.
    """

    def __init__(
        self,
        contents: Contents,
        *,
        dataset: str,
        blocks: Blocks,
        limits: StreamLimits,
        observer: StreamTally,
        outlet: Outlet | None = None,
        turns: StreamTurns | None = None,
        share: Share | None = None,
    ) -> None:
        self._contents = contents
        self._share = Share(Budget(_NO_LIMIT)) if share is None else share
        self._turns = turns or StreamTurns(Turns().of(""), Turns().of(""), RowPool(1))
        self._dataset = dataset
        self._blocks = blocks
        self._limits = limits
        self._observer = observer
        self._outlet = outlet or WireOutlet(
            contents.max_chunk_bytes, group_bytes=contents.max_group_bytes
        )
        self._waiter = blocks.waiter(contents.job)
        self._ending: HeadraceError | _CancelledError | None = None
        self._is_cancelled = self._is_closed = False
        self.batch_bytes = 0
        self.expires_at = time.monotonic() + (limits.lifetime_s or math.inf)
        self._staged = (
            None
            if contents.pipeline is None
            else StagedBatches(
                contents,
                contents.pipeline,
                outlet=self._outlet,
                turns=self._turns,
                share=self._share,
                stage_timeout_s=limits.stage_timeout_s,
                heartbeat_s=limits.heartbeat_s,
            )
        )
        self._maker = BatchMaker(
            contents,
            blocks=blocks,
            # Stages need each batch in one piece.
            outlet=self._outlet if self._staged is None else WireOutlet(limits.max_batch_bytes),
            max_batch_bytes=limits.max_batch_bytes,
            claim=self._share.claim if self._staged is None else self._staged.claim,
        )
        self._is_there = True
        self._lookahead = Lookahead(
            contents.plans,
            blocks=blocks,
            waiter=self._waiter,
            budget_bytes=limits.prefetch_bytes,
            read_ahead=contents.read_ahead,
            spare_bytes=limits.spare_bytes,
        )

    def cancel(self) -> None:
        """End the stream because its client is gone."""
        self._is_cancelled = True
        self._end(_CancelledError())

    def interrupt(self, error: HeadraceError) -> None:
        """End the stream with an error, between two batches."""
        self._end(_CancelledError() if self._is_cancelled else error)

    def messages(self) -> Generator[bytes, None, None]:
        """Yield the encoded messages of the stream."""
        try:
            yield self._framed(pb.ReadBatchesResponse(start=self._contents.start))
            yield from self._stood()
            yield from self._epochs()
        except (_CancelledError, ClientGoneError) as error:
            clear_frames(error.__traceback__)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the cache; nobody may be reading messages. Harmless after their end."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._staged is not None:
            self._staged.close()
        self._lookahead.close()
        self._blocks.leave(self._waiter)

    def _end(self, ending: HeadraceError | _CancelledError) -> None:
        self._ending = ending
        self._waiter.interrupt()
        self._share.wake()
        self._outlet.wake()

    def _epochs(self) -> Iterator[bytes]:
        # Chosen once: every call counts where batches are small.
        take = self.plan if self._staged is None else partial(self._take, self._staged)
        while (taken := take()) is not None:
            batches, end = taken
            if end is not None:
                yield self._framed(pb.ReadBatchesResponse(epoch_end=end))
                continue
            while batches:
                if self._limits.lifetime_s and time.monotonic() >= self.expires_at:
                    raise worn_error()
                if (
                    self._staged is None or not self._staged.is_ahead
                ) and not self._outlet.has_room():
                    self._observer.blocked(time.monotonic())
                    self._outlet.wait()
                    self._observer.blocked(None)
                if self._ending is not None:
                    raise self._ending
                made = yield from self._made(batches[: self._outlet.room(len(batches))])
                del batches[:made]

    def _take(self, staged: StagedBatches) -> Planned | None:
        """Return what was planned early, or plan."""
        planned = staged.take_planned()
        return self.plan() if planned is None else planned

    def plan(self) -> Planned | None:
        """Plan the next batches or end of an epoch; None after the last epoch."""
        # Checked before planning: the dataset of a stream that was ended may be closed.
        if self._ending is not None:
            raise self._ending
        with self._turns.batches.turn():
            taken = self._lookahead.take(self._maker.most)
        if self._ending is not None:
            raise self._ending
        return taken

    def _made(self, batches: list[PlannedBatch]) -> Generator[bytes, None, int]:
        """Make and send batches in one pass, or only the first one; return how many were sent."""
        began = time.monotonic()
        self._is_there = True
        while True:
            try:
                made = yield from self._passed(batches)
            except (ShortError, HeadraceError) as error:
                made = None
                if len(batches) == 1:
                    if not isinstance(error, ShortError):
                        raise
                    yield from self._waited_for(error.making)
            if made is not None:
                break
            # Start over with only the first batch, also after a wait for memory.
            batches = batches[:1]
        self._observer.made(seconds=time.monotonic() - began, batches=len(batches))
        yield from self._account()
        self.batch_bytes = sum(made.sizes)
        self._maker.note(payload_bytes=made.sizes[-1], is_there=self._is_there)
        # Each message is released when it is sent.
        finished = deque(made.messages)
        made.messages.clear()
        self._share.keep(
            sum([len(message) for message, _ in finished]),
            making=0 if self._staged is None else self._staged.ahead_bytes,
        )
        sent = 0
        try:
            while finished:
                if self._ending is not None:
                    raise self._ending
                message, batch_count = finished.popleft()
                for _ in range(batch_count):
                    self._outlet.announce()
                if message:
                    yield message
                del message
                sent += batch_count
        finally:
            self._count(batches[:sent], sum(made.sizes[:sent]))
        return len(batches)

    def _account(self) -> Iterator[bytes]:
        """Tell the client what there was to do while there was nothing to send, if it is much."""
        if (owed := self._observer.owed()) is not None:
            yield self._heartbeat(0.0, owed)

    def _passed(self, batches: list[PlannedBatch]) -> Generator[bytes, None, EncodedBatches | None]:
        """Make batches in one pass, or one while its blocks arrive; None if they do not fit."""
        if self._staged is not None:
            (planned,) = batches
            self._observer.staging()
            try:
                staged, replaced = yield from self._staged.make(planned, self)
            finally:
                self._observer.staged()
            if replaced:
                self._observer.replaced(samples=replaced)
            return staged
        with self._turns.batches.turn():
            made = self._maker.make(batches)
        if made is None and len(batches) == 1:
            made = yield from self.gather_late(batches[0])
        return made

    def gather(self, planned: PlannedBatch) -> EncodedBatches | None:
        """Make a batch if its blocks are in memory."""
        with self._turns.batches.turn():
            return self._maker.make([planned])

    def gather_late(self, planned: PlannedBatch) -> Generator[bytes, None, EncodedBatches | None]:
        """Wait for the blocks of a batch, with heartbeats, and make it."""
        # The cache evicts the blocks of the current batch last, so all of them are probably there
        # in the end. If one is not, samples are copied from each block when it arrives.
        if self._blocks.fit_together(planned.found.touched):
            yield from self._waited_for_blocks(planned, None)
            if (made := self.gather(planned)) is not None:
                return made
        staged = self._maker.stage(planned.found.blocks.size)
        yield from self._waited_for_blocks(planned, staged)
        return self._maker.write([planned], staged.in_one_block(), beside=staged.nbytes)

    def _stood(self) -> Iterator[bytes]:
        """Reserve memory for the plan as long as the stream is open."""
        size = plan_bytes(self._contents.row_count)
        try:
            self._share.claim(size)
        except ShortError:
            yield from self._waited_for(size)
        self._share.stand(size)

    def _waited_for(self, making: int) -> Iterator[bytes]:
        """Wait for memory to make a batch, of which no part is made yet."""
        self._outlet.flush()
        began = said = time.monotonic()
        with self._share.line(making) as place:
            while not place.wait():
                self.check_ending()
                now = time.monotonic()
                if self._share.waiting:
                    # The client has messages to read first.
                    began = said = now
                elif now - began >= _MEMORY_WAIT_S:
                    raise PayloadLimitError(
                        f"a batch needs {making} bytes while it is made, which other streams have "
                        f"used for {now - began:.0f} s; wait, use a smaller batch, or ask the "
                        "operator for more --payload-bytes"
                    )
                elif now - said >= self._limits.heartbeat_s:
                    said = now
                    yield self.heartbeat(now - began)

    def _count(self, batches: list[PlannedBatch], payload_bytes: int) -> None:
        if not batches:
            return
        last = batches[-1]
        self._observer.sent(
            batches=len(batches),
            samples=sum([planned.sample_count for planned in batches]),
            payload_bytes=payload_bytes,
            place=(last.epoch, last.part.next_position, last.step + 1),
        )

    def _waited_for_blocks(
        self, planned: PlannedBatch, staged: StagedRows | None
    ) -> Generator[bytes, None, None]:
        """Wait until the blocks of a batch have arrived, and copy its samples into ``staged``.

        Without ``staged``, all blocks are probably in memory in the end. With it, no two of them
        need to be in memory at the same time.
        """
        self._is_there = False
        self._turns.on_store_wait()
        self._outlet.flush()
        self._lookahead.advance()
        began = progress = now = time.monotonic()
        self._observer.starving(began)
        missing = planned.found.touched
        if staged is None:
            missing = missing[~self._blocks.is_cached(missing)]
        while missing.size:
            due_s = self._limits.heartbeat_s if now - began >= _FIRST_S else _FIRST_S
            left = self._take_arrivals(planned, missing, staged, due_s=due_s)
            now = time.monotonic()
            progress = now if left.size < missing.size else progress
            missing = left
            if missing.size:
                self.check_ending()
                self._check_progress(now - progress, missing)
                yield self.heartbeat(now - began)
        waited_s = time.monotonic() - began
        self._observer.starved(seconds=waited_s)

    def _take_arrivals(
        self,
        planned: PlannedBatch,
        missing: NDArray[np.int64],
        staged: StagedRows | None,
        *,
        due_s: float,
    ) -> NDArray[np.int64]:
        """Take arriving blocks until the next heartbeat is due; return those still missing."""
        due = time.monotonic() + min(due_s, self._limits.heartbeat_s)
        with self._blocks.demand(missing, self._waiter):
            while missing.size and (timeout_s := due - time.monotonic()) > 0:
                arrived = self._blocks.arrivals(self._waiter, timeout_s=timeout_s)
                if not arrived.size:
                    break
                if staged is not None:
                    self._stage(planned, arrived, staged)
                missing = np.setdiff1d(missing, arrived, assume_unique=True)
        return missing

    def _stage(self, planned: PlannedBatch, arrived: NDArray[np.int64], staged: StagedRows) -> None:
        found = planned.found
        places = np.flatnonzero(np.isin(found.blocks, arrived))
        staged.add(places, self._blocks.rows(found.blocks[places], found.offsets[places]))

    def check_ending(self) -> None:
        """Raise the error that ends the stream, if there is one."""
        if self._ending is not None:
            raise self._ending

    def _check_progress(self, waited_s: float, missing: NDArray[np.int64]) -> None:
        if waited_s >= self._limits.store_timeout_s:
            raise StoreUnavailableError(
                f"the store of {self._dataset!r} delivered none of {missing.size} blocks in "
                f"{waited_s:.0f} s; try again",
                dataset=self._dataset,
            )

    def heartbeat(self, waited_s: float) -> bytes:
        """Return a heartbeat that states how long the stream has waited, and for what."""
        return self._heartbeat(waited_s, self._observer.waits())

    def _heartbeat(self, waited_s: float, waits: Waits) -> bytes:
        names = ("waiting_ms", "store_ms", "decode_ms", "server_ms")
        values = [round(seconds * 1000) for seconds in (waited_s, *waits)]
        heartbeat = pb.Heartbeat(**dict(zip(names, values, strict=True)))
        return self._framed(pb.ReadBatchesResponse(heartbeat=heartbeat))

    def _framed(self, response: pb.ReadBatchesResponse) -> bytes:
        frame = message_frame(response)
        self._share.note(len(frame))
        return frame


def worn_error() -> RebalanceError:
    """Return the error of a stream that has reached its age limit."""
    return RebalanceError("this stream has reached its age limit; reconnect to continue")
