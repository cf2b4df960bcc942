"""Lines of what waits, one for each caller, that have their turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Lines(Generic[_Item]):
    """Gives out what waits by turns of the callers, and of one caller's in the order of coming.

    For one thread at a time.
    """

    def __init__(self) -> None:
        # By caller, in the order in which they have their turns; none is empty.
        self._lines: dict[str, deque[_Item]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._count

    def count_of(self, caller: str) -> int:
        """Return how many of a caller wait."""
        return len(self._lines.get(caller, ()))

    def append(self, caller: str, item: _Item) -> None:
        """Let something wait."""
        line = self._lines.get(caller)
        if line is None:
            line = self._lines[caller] = deque()
        line.append(item)
        self._count += 1

    def callers(self) -> Iterator[str]:
        """Yield those who have a line, in the order in which they have their turns."""
        yield from self._lines

    def pop(self, caller: str | None = None) -> tuple[str, _Item]:
        """Return what is next, with its caller; something must wait.

        Args:
            caller: The caller whose call to take; None for whoever is next.
        """
        if caller is None:
            caller = next(iter(self._lines))
        line = self._lines.pop(caller)
        item = line.popleft()
        if line:
            # Behind all others.
            self._lines[caller] = line
        self._count -= 1
        return caller, item
