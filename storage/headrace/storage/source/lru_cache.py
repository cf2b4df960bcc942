"""A cache of values that take long to make."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LruCache(Generic[_Key, _Value]):
    """A cache that drops the least recently used values first; safe for several threads.

    If two threads request the same new value, both make it, neither waits for the other, and one
    of the two is kept.

    Args:
        max_count: The maximum number of values.
        max_bytes: The maximum total size of the values; a larger value is kept alone.
        size: Returns the bytes of a value.
    """

    def __init__(
        self,
        max_count: int = sys.maxsize,
        *,
        max_bytes: int = 0,
        size: Callable[[_Value], int] = lambda _: 0,
    ) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._bytes = 0

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, or make it; raises what ``make`` raises."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            if key not in self._values:
                self._values[key] = made
                self._bytes += self._size(made)
            while len(self._values) > 1 and self._is_too_much():
                self._bytes -= self._size(self._values.popitem(last=False)[1])
        return made

    def drop(self, key: _Key) -> None:
        """Drop the value of a key, if there is one."""
        with self._lock:
            if key in self._values:
                self._bytes -= self._size(self._values.pop(key))

    def _is_too_much(self) -> bool:
        return len(self._values) > self._max_count or self._bytes > self._max_bytes
