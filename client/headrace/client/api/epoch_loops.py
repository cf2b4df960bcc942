"""Hand the batches of a stream to loops: one loop at a time, one epoch for each."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar, cast

from headrace.client.api.live_stream import LiveStream
from headrace.client.feeds.transport import Landing
from headrace.client.loader.loop_turns import Loop, LoopTurns
from headrace.client.loader.progress import LoopProgress
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.wire.assembler import BatchEvent

_Result = TypeVar("_Result")

_END = object()
"""In place of a result, which may be None."""


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
                loop.epoch, loop.moves = progress.place.epoch, progress.moves
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
