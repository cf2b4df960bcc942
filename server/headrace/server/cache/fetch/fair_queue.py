"""A queue in which a long line of one job does not delay other jobs."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """A queue of items by job, from which jobs take turns; not thread-safe."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, deque[_T]] = OrderedDict()

    def put(self, thing: _T, *, job: int) -> None:
        """Add an item to the line of its job."""
        self._lines.setdefault(job, deque()).append(thing)

    def take(self) -> _T | None:
        """Return the next item of the job whose turn it is; None if the queue is empty."""
        if not self._lines:
            return None
        job, line = self._lines.popitem(last=False)
        thing = line.popleft()
        if line:
            self._lines[job] = line
        return thing
