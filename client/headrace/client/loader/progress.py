"""How far the loop has got in the order."""

from __future__ import annotations

from headrace.client.loader.worker_plan import Begin
from headrace.client.reader.reader import Place
from headrace.client.state.token_places import place_after
from headrace.client.wire.assembler import Mark, header_of


class LoopProgress:
    """The place after the last batch handed to the loop, in one process.

    Attributes:
        first_epoch: The epoch that ``restart=True`` goes back to.
        moves: How often the place was moved by hand.
        unread: The mark of the last batch handed over since the place was set, if there is one.
    """

    def __init__(self) -> None:
        """Begin at the first epoch's begin."""
        self.first_epoch = 0
        self.moves = 0
        self._known = Place()
        self._read: tuple[Mark, Place] | None = None
        # Set alone, by one store: between it and the `yield` that follows nothing may come.
        self.unread: Mark | None = None

    @property
    def place(self) -> Place:
        """Where the next batch is; may be called from any thread."""
        # The header of each batch is kept, and read only on demand.
        mark, read = self.unread, self._read
        if mark is None:
            return self._known
        if read is None or read[0] is not mark:
            read = self._read = mark, place_after(header_of(mark).resume_token)
        return read[1]

    @place.setter
    def place(self, place: Place) -> None:
        self._known = place
        self.unread = self._read = None

    def begin(self) -> Begin:
        """Return where an iteration begins now."""
        return Begin(self.place, self.moves, self.first_epoch)
