"""How far the loop has got in the order."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.reader.reader import Place
from headrace.client.wire.assembler import Mark, header_of


@dataclass(frozen=True, slots=True)
class LoopStart:
    """Where an iteration starts.

    Attributes:
        place: Where the first batch starts; with workers, the first batch of worker 0.
        moves: How often the dataset was moved by hand before.
        first_epoch: The epoch that ``epochs="same"`` goes back to.
        resharded: `LoopProgress.resharded`.
    """

    place: Place
    moves: int
    first_epoch: int
    resharded: int = 0

    def is_after(self, other: LoopStart) -> bool:
        """Return whether this is the later of two states of one dataset."""
        mine = (self.moves, self.place.epoch, self.place.position)
        return mine > (other.moves, other.place.epoch, other.place.position)


class LoopProgress:
    """The place after the last batch handed to the loop, in one process.

    Attributes:
        first_epoch: The epoch that ``epochs="same"`` goes back to.
        moves: How often the place was moved by hand.
        resharded: The value of ``moves`` when the rank was last changed; 0 for never.
        committed: The place after the last committed step; None for a loop that commits none.
        unread: The mark of the last batch handed over since the place was set; None without one.
    """

    def __init__(self) -> None:
        """Start with the first batch of the first epoch."""
        self.first_epoch = 0
        self.moves = self.resharded = 0
        self._known = self._moved_to = Place()
        self.committed: Place | None = None
        self._was_read = False
        self._read: tuple[Mark, Place] | None = None
        # Set by a single store, which nothing may separate from the `yield` that follows.
        self.unread: Mark | None = None

    @property
    def place(self) -> Place:
        """Where the next batch starts; may be read from any thread."""
        # The mark of the last batch is kept, and decoded only on demand.
        mark, read = self.unread, self._read
        if mark is None:
            return self._known
        if read is None or read[0] is not mark:
            read = self._read = mark, Place.after(header_of(mark).resume_token)
        return read[1]

    @place.setter
    def place(self, place: Place) -> None:
        self._known = place
        self.unread = self._read = None

    @property
    def moved_to(self) -> Place:
        """Where the dataset was moved by hand, or its beginning."""
        return self._moved_to

    @property
    def settled(self) -> Place:
        """The place after the last committed step; `place` for a loop that commits none."""
        return self.committed or self.place

    def commit(self, place: Place) -> None:
        """Note that the steps before a place are committed."""
        self.committed = place

    @property
    def has_begun(self) -> bool:
        """Whether the loop got a batch since the place was moved by hand."""
        place, moved_to = self.place, self._moved_to
        return (place.epoch, place.position) != (moved_to.epoch, moved_to.position)

    @property
    def is_left(self) -> bool:
        """Whether the loop got batches, but not all of the epoch, since then."""
        return self.has_begun and self.place.position > 0

    @property
    def was_read(self) -> bool:
        """Whether a loop of this process has ever got a batch."""
        return self._was_read or self.has_begun

    def move(self, place: Place) -> None:
        """Move the place by hand."""
        self._was_read = self.was_read
        self.place = self._moved_to = place
        if self.committed is not None:
            self.committed = place
        self.moves += 1

    def reshard(self, place: Place) -> None:
        """Move the place to where another share of the batches begins."""
        self.move(place)
        self.resharded = self.moves

    def start(self) -> LoopStart:
        """Return where an iteration would start now."""
        return LoopStart(self.place, self.moves, self.first_epoch, self.resharded)
