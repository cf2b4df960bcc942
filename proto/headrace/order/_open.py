"""What is open: layouts or bands worked out so far, found by their keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray


class Joinable(Protocol):
    """A table of several things, to which another table can be added."""

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        ...

    def join(self, later: Self, /) -> Self:
        """Return this table followed by another."""
        ...


Table = TypeVar("Table", bound=Joinable)


class OpenTable(Generic[Table]):
    """One growing table; over its budget it starts again with what is needed now.

    The budget is at least twice what was needed at once.

    Not safe to call from several threads: its owner holds a lock.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._keys = np.empty(0, np.uint64)
        self._slots = np.empty(0, np.int64)
        self._table: Table | None = None

    def find(
        self, keys: NDArray[np.uint64], make: Callable[[NDArray[np.int64]], Table]
    ) -> tuple[Table, NDArray[np.int64]]:
        """Return a table that holds some things, and their places in it.

        Args:
            keys: (n,) uint64, the key of each thing; they may repeat.
            make: Makes a table of things, given their places in `keys`.

        Returns:
            The table and (n,) int64, the place in it of each thing.
        """
        slots = self._lookup(keys)
        missing = np.flatnonzero(slots < 0)
        if len(missing) or self._table is None:
            table = self._add(keys, missing, make)
            return table, self._lookup(keys)
        return self._table, slots

    def _add(
        self,
        keys: NDArray[np.uint64],
        missing: NDArray[np.int64],
        make: Callable[[NDArray[np.int64]], Table],
    ) -> Table:
        if self._table is None or self._table.nbytes > self._budget_bytes:
            _, first = np.unique(keys, return_index=True)
            table, held = make(first), keys[first]
            # What one batch needs must fit, else each batch would start again.
            self._budget_bytes = max(self._budget_bytes, 2 * table.nbytes)
        else:
            _, first = np.unique(keys[missing], return_index=True)
            first = missing[first]
            table = self._table.join(make(first))
            held = np.append(self._keys[np.argsort(self._slots)], keys[first])
        self._table = table
        self._slots = np.argsort(held)
        self._keys = held[self._slots]
        return table

    def _lookup(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        if not len(self._keys):
            return np.full(len(keys), -1)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._slots[places], -1)
