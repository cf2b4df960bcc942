"""A cache of values that take long to make."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LruCache(Generic[_Key, _Value]):
    """A cache that drops the least recently used values first; safe for several threads.

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
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of all values held now."""
        return self._held_bytes

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, or make it; raises what ``make`` raises.

        If two threads request the same new value, both make it, neither waits for the other, and
        one of the two is kept.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            if key not in self._values:
                self._keep(key, made)
        return made

    def get_once(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, made at most once however many threads ask for it.

        Args:
            key: The key of the value.
            make: Makes the value. It runs under the cache's lock, so it must not use this cache,
                and may use other caches only in one fixed order.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            made = make()
            self._keep(key, made)
            return made

    def find(self, key: _Key) -> _Value | None:
        """Return the value of a key if it is held."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def drop(self, key: _Key) -> None:
        """Drop the value of a key, if there is one."""
        with self._lock:
            if key in self._values:
                self._held_bytes -= self._size(self._values.pop(key))

    def drop_if(self, is_over: Callable[[_Value], bool]) -> None:
        """Drop the values that are over."""
        with self._lock:
            over = [key for key, each in self._values.items() if is_over(each)]
        for key in over:
            self.drop(key)

    def _keep(self, key: _Key, made: _Value) -> None:
        self._values[key] = made
        self._held_bytes += self._size(made)
        while len(self._values) > 1 and (
            len(self._values) > self._max_count or self._held_bytes > self._max_bytes
        ):
            self._held_bytes -= self._size(self._values.popitem(last=False)[1])


class _HasSize(Protocol):
    @property
    def nbytes(self) -> int: ...


_Sized = TypeVar("_Sized", bound=_HasSize)


class BoundedCache(LruCache[_Key, _Sized]):
    """A cache of values that know their size.

    Args:
        max_bytes: The maximum total size of the values; a larger value is kept alone.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes=max_bytes, size=lambda value: value.nbytes)
