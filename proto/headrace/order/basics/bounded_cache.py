"""A small cache, bounded in bytes, for what several ranks need at the same time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class HasSize(Protocol):
    """A value that knows its size."""

    @property
    def nbytes(self) -> int:
        """Bytes that the value holds."""
        ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=HasSize)


class BoundedCache(Generic[Key, Value]):
    """Keeps the most recently used values within a budget in bytes; thread-safe.

    The newest value is kept even if it exceeds the budget, so that it is not made again for every
    call.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes of all values held now."""
        return self._held_bytes

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
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
            value = make()
            self._values[key] = value
            self._held_bytes += value.nbytes
            self._evict()
            return value

    def find(self, key: Key) -> Value | None:
        """Return the value of a key if it is held."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def _evict(self) -> None:
        while self._held_bytes > self._budget_bytes and len(self._values) > 1:
            _, value = self._values.popitem(last=False)
            self._held_bytes -= value.nbytes
