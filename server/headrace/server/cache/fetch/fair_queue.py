"""A queue in which one job's long line does not delay the others."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Things in line by job; jobs take turns. Not safe for several threads."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, deque[_T]] = OrderedDict()

    def put(self, thing: _T, *, job: int) -> None:
        """Let a thing stand in its job's line."""
        self._lines.setdefault(job, deque()).append(thing)

    def take(self) -> _T | None:
        """Return the next thing of the job whose turn it is, or None if nothing stands in line."""
        if not self._lines:
            return None
        job, line = self._lines.popitem(last=False)
        thing = line.popleft()
        if line:
            self._lines[job] = line
        return thing
