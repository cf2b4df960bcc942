"""Waiting items in one line for each caller; callers take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Lines(Generic[_Item]):
    """Returns waiting items by turns of their callers, and in order for each caller.

    Not thread-safe.
    """

    def __init__(self) -> None:
        # By caller, in the order of turns; no line is empty.
        self._lines: dict[str, deque[_Item]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return self._count

    def count_of(self, caller: str) -> int:
        """Return the number of waiting items of a caller."""
        return len(self._lines.get(caller, ()))

    def append(self, caller: str, item: _Item) -> None:
        """Add an item to its caller's line."""
        line = self._lines.get(caller)
        if line is None:
            line = self._lines[caller] = deque()
        line.append(item)
        self._count += 1

    def callers(self) -> Iterator[str]:
        """Yield the callers with waiting items, in the order of their turns."""
        yield from self._lines

    def pop(self, caller: str | None = None) -> tuple[str, _Item]:
        """Return the next item with its caller; there must be one.

        Args:
            caller: The caller whose item to take; None for the caller whose turn it is.
        """
        if caller is None:
            caller = next(iter(self._lines))
        line = self._lines.pop(caller)
        item = line.popleft()
        if line:
            # At the end of the order of turns.
            self._lines[caller] = line
        self._count -= 1
        return caller, item
