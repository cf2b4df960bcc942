"""Keep what was made last, for the streams that share it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Made = TypeVar("_Made")


class Recent(Generic[_Made]):
    """What was made last, by its key; thread-safe.

    Args:
        most: How many to keep; others stay as long as a stream uses them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()

    def known(self, key: Hashable) -> _Made | None:
        """Return what a key stands for, if it was made and kept."""
        with self._lock:
            return self._made.get(key)

    def drop(self, is_over: Callable[[_Made], bool]) -> None:
        """Keep no more what is over."""
        with self._lock:
            for key in [key for key, each in self._made.items() if is_over(each)]:
                del self._made[key]

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return what a key stands for, made once."""
        with self._lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = make()
            self._made.move_to_end(key)
            if len(self._made) > self._most:
                self._made.popitem(last=False)
        return found
