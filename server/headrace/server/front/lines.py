"""Waiting items in one line for each caller; callers take turns.

Contract:

1. The next item belongs to another caller than the last one if there is one that may run, and the
   items of one caller keep their order.
2. At most ``most`` items wait, with ``most_bytes``. One caller has at most half of either, so that
   it cannot keep others out.
3. At most ``most_running`` run at a time, and ``most_of_caller`` of one caller, so that its long
   work leaves room for others. One begins in ``turn_s`` at most.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Lines(Generic[_Item]):
    """The waiting and running items of all callers; not thread-safe.

    Args:
        most: The most waiting items.
        most_bytes: The most bytes that they hold.
        most_running: The most running items.
        most_of_caller: The most running items of one caller.
        turn_s: Seconds between two turns.
    """

    def __init__(
        self,
        *,
        most: int,
        most_bytes: float = math.inf,
        most_running: float = math.inf,
        most_of_caller: float = math.inf,
        turn_s: float = 0.0,
    ) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._most_running, self._most_of_caller = most_running, most_of_caller
        self._turn_s, self._next_at = turn_s, -math.inf
        # By caller, in the order of turns; no line is empty.
        self._lines: dict[str, deque[tuple[_Item, int]]] = {}
        self._count = self._bytes = self._running = 0
        self._bytes_of: Counter[str] = Counter()
        self._running_of: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return self._count

    def append(self, caller: str, item: _Item, size: int = 0) -> bool:
        """Let an item wait that holds ``size`` bytes; return False if there is no room for it."""
        line = self._lines.get(caller, ())
        if (
            2 * (len(line) + 1) > self._most
            or 2 * (self._bytes_of[caller] + size) > self._most_bytes
            or self._count >= self._most
            or self._bytes + size > self._most_bytes
        ):
            return False
        self._lines.setdefault(caller, deque()).append((item, size))
        self._count += 1
        self._bytes += size
        self._bytes_of[caller] += size
        return True

    def wait_s(self, now: float) -> float:
        """Return the seconds until an item may have a turn; infinite if none may."""
        return max(0.0, self._next_at - now) if self._next_caller() is not None else math.inf

    def pop(self, now: float = 0.0) -> tuple[str, _Item] | None:
        """Return the item that has a turn now, with its caller; `ended` must follow."""
        caller = self._next_caller()
        if caller is None or now < self._next_at:
            return None
        self._next_at = now + self._turn_s
        line = self._lines.pop(caller)
        item, size = line.popleft()
        self._count -= 1
        self._bytes -= size
        self._bytes_of[caller] -= size
        if line:
            # At the end of the order of turns.
            self._lines[caller] = line
        else:
            del self._bytes_of[caller]
        self._running += 1
        self._running_of[caller] += 1
        return caller, item

    def ended(self, caller: str) -> None:
        """Count the end of an item of a caller."""
        self._running -= 1
        self._running_of[caller] -= 1
        if not self._running_of[caller]:
            del self._running_of[caller]

    def clear(self) -> None:
        """Drop all waiting items."""
        self._lines.clear()
        self._bytes_of.clear()
        self._count = self._bytes = 0

    def _next_caller(self) -> str | None:
        if self._running >= self._most_running:
            return None
        mine = self._running_of
        return next((one for one in self._lines if mine[one] < self._most_of_caller), None)
