"""Hand the batches of a stream to loops: one loop at a time, one epoch for each.

Contract:

1. Batches are taken in turns, and a turn belongs to one thread: a second thread is refused at once.
2. A new loop ends the one before it, in whichever thread that runs: the old loop gets an error when
   it asks for another batch. So each batch goes to one loop.
3. Moving the dataset (`seek`, `load_state_dict`, `reshard`) needs a turn too. A loop goes on at the
   new place; after `reshard`, which leaves epochs as they are, it still ends with its epoch.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TypeVar, cast

from headrace.client.api.live_stream import LiveStream
from headrace.client.feeds.transport import Landing
from headrace.client.loader.progress import LoopProgress
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.wire.assembler import BatchEvent
from headrace.errors import BadArgumentError

_Result = TypeVar("_Result")

_END = object()
"""In place of a result, which may be None."""

_ADVICE = (
    "a dataset serves one loop at a time: make a dataset for each thread (each with its own rank "
    "if they share the samples), or let one thread iterate and pass batches on through a "
    "queue.Queue"
)


class Loop:
    """One iteration of a dataset.

    Attributes:
        epoch: The epoch whose rest it yields.
        moves: How often the dataset was moved by hand before.
    """

    __slots__ = ("epoch", "moves")

    def __init__(self, epoch: int, moves: int) -> None:
        self.epoch, self.moves = epoch, moves


class LoopTurns:
    """Gives turns to loops; a copy in another process starts without any.

    Attributes:
        newest: The loop that gets batches.
    """

    def __init__(self) -> None:
        self.newest: Loop | None = None
        # Re-entrant: a thread keeps a turn whose end Ctrl-C interrupted.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[LoopTurns], tuple[()]]:
        """Unpickle without any turn."""
        return LoopTurns, ()

    def begin(self, loop: Loop) -> None:
        """Make this the loop that gets batches.

        Raises:
            BadArgumentError: Another thread waits for a batch.
        """
        self.take()
        self.newest = loop
        self._lock.release()

    def take(self, loop: Loop | None = None) -> None:
        """Start a turn; the caller must call `end` after it.

        Args:
            loop: The loop; None for a caller that moves the dataset.

        Raises:
            BadArgumentError: Another thread has the turn, or another loop has started since.
        """
        if not self._lock.acquire(blocking=False):
            raise BadArgumentError(
                f"{threading.current_thread().name} uses a dataset from which another thread is "
                f"taking a batch; {_ADVICE}",
                field="dataset",
            )
        if loop is not None and self.newest is not loop:
            self._lock.release()
            raise overtaken()

    def end(self) -> None:
        """End a turn."""
        self._lock.release()


class EpochLoops:
    """Gives each loop the rest of an epoch.

    Attributes:
        progress: How far the loops have got.
        turns: Whose turn it is to take a batch, or to move the dataset.
    """

    def __init__(self, live: LiveStream) -> None:
        """Start with the first batch of the first epoch.

        Args:
            live: Where the batches come from.
        """
        self.progress, self.turns, self._live = LoopProgress(), LoopTurns(), live

    def rest_of_epoch(
        self,
        make_reader: Callable[[Landing], BatchReader],
        result_of: Callable[[BatchEvent], _Result],
        after_each: Callable[[], None] | None = None,
    ) -> Generator[_Result, None, None]:
        """Yield what the loop gets of each batch that the current epoch has left.

        Args:
            make_reader: Makes the reader that starts after the last batch handed over.
            result_of: Returns what the loop gets of a batch. If it fails, the next loop starts with
                this batch.
            after_each: Called when the loop is done with a batch.

        Raises:
            BadArgumentError: Another loop has started since, or another thread takes a batch.
            HeadraceError: No further batch can be read; the next loop tries again from there.
        """
        progress = self.progress
        loop = Loop(progress.place.epoch, progress.moves)
        self.turns.begin(loop)
        while True:
            unread = progress.unread
            try:
                found = self._next_result(loop, make_reader, result_of)
            except BaseException:
                # Ctrl-C may come between any two instructions: a batch that was taken for this loop
                # and did not reach it comes again. Nothing is called here, as it may come twice.
                if self.turns.newest is loop:
                    self._live.is_broken = True
                    progress.unread = unread
                raise
            if found is _END:
                return
            yield cast("_Result", found)
            if after_each is not None:
                after_each()

    def _next_result(
        self,
        loop: Loop,
        make_reader: Callable[[Landing], BatchReader],
        result_of: Callable[[BatchEvent], object],
    ) -> object:
        """Hand the next result over to a loop; `_END` after its epoch."""
        self.turns.take(loop)
        try:
            progress = self.progress
            if loop.moves != progress.moves:
                was_resharded = progress.resharded > loop.moves
                loop.moves = progress.moves
                if was_resharded and progress.place.epoch > loop.epoch:
                    return _END
                loop.epoch = progress.place.epoch
            while (event := self._live.next_event(make_reader)) is not None:
                if isinstance(event, BatchEvent):
                    found = result_of(event)
                    progress.unread = event.mark
                    return found
                # The end of an older epoch, whose last batch was handed over before a `break`.
                if event.epoch >= loop.epoch:
                    progress.place = Place.after(event.resume_token)
                    return _END
            return _END
        finally:
            self.turns.end()


def overtaken() -> BadArgumentError:
    """Return the error for a loop after another one has started."""
    return BadArgumentError(
        f"another loop over this dataset started, so this one gets no more batches; {_ADVICE}",
        field="dataset",
    )
