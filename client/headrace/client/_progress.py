"""How far the loop has got in the order."""

from __future__ import annotations

from headrace.client._assembler import Mark, header_of
from headrace.client._places import place_after
from headrace.client._reader import Place
from headrace.client._workers import Begin


class Progress:
    """The place after the last batch handed to the loop, in one process.

    Attributes:
        first_epoch: The epoch that ``restart=True`` goes back to.
        moves: How often the place was moved by hand.
    """

    def __init__(self) -> None:
        """Begin at the first epoch's begin."""
        self.first_epoch = 0
        self.moves = 0
        self._known = Place()
        self._unread: Mark | None = None

    @property
    def place(self) -> Place:
        """Where the next batch is."""
        # The header of each batch is kept, and read when somebody wants to know.
        mark, self._unread = self._unread, None
        if mark is not None:
            self._known = place_after(header_of(mark).resume_token)
        return self._known

    @place.setter
    def place(self, place: Place) -> None:
        self._unread = None
        self._known = place

    def hand_over(self, mark: Mark) -> None:
        """Note that the loop gets the batch with this header."""
        self._unread = mark

    def begin(self) -> Begin:
        """Return where an iteration begins now."""
        return Begin(self.place, self.moves, self.first_epoch)
