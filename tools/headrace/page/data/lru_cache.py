"""A cache of values that take long to make."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LruCache(Generic[_Key, _Value]):
    """A cache that drops the least recently used values first; safe for several threads.

    If two threads request the same new value, both make it, and neither waits for the other.

    Args:
        max_count: The maximum number of values.
        max_bytes: The maximum total size of the values; a larger value is kept alone.
        size: Returns the bytes of a value.
    """

    def __init__(
        self,
        max_count: int,
        *,
        max_bytes: int = 0,
        size: Callable[[_Value], int] = lambda _: 0,
    ) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, or make it; raises what ``make`` raises."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            self._values[key] = made
            while len(self._values) > 1 and self._is_too_much():
                self._values.popitem(last=False)
        return made

    def _is_too_much(self) -> bool:
        return (
            len(self._values) > self._max_count
            or sum(map(self._size, self._values.values())) > self._max_bytes
        )
