"""The memory of one ring: made, sealed, lent out slot by slot."""

from __future__ import annotations

import contextlib
import fcntl
import os

from headrace.errors import BadArgumentError
from headrace.server.cache.memory.arena import ExtentAllocator, rounded
from headrace.server.cache.memory.shared_memory import Shared

# Nobody can make a mapping shorter than its reader believes, nor take these promises back. Writing
# stays allowed: tensors are writable by promise. A private mapping would allow it too, but would
# continue showing what a client wrote after the slot is written again, and cannot be pinned.
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")  # by name: Linux alone has them

IS_SUPPORTED = hasattr(os, "memfd_create") and hasattr(os, "eventfd")


class RingMemory:
    """Slots of one stream; for one thread.

    What lies in the memory is the client's to write as much as the server's, so nothing is read
    back: who has which slot is noted here.

    Args:
        size: Bytes.

    Attributes:
        shared: The memory, to be handed over.
        array: The memory as ``(size,) uint8``.
    """

    def __init__(self, size: int) -> None:
        self.shared = Shared.create("headrace-ring", size)
        self.array = self.shared.map()
        seals = sum(getattr(fcntl, name) for name in _SEALS)
        fcntl.fcntl(self.shared.fd, fcntl.F_ADD_SEALS, seals)
        self._free = ExtentAllocator(size)
        self._lent: dict[int, tuple[int, int]] = {}
        self._generation = 0

    @property
    def lent_count(self) -> int:
        """Return how many slots the client has, or is about to get."""
        return len(self._lent)

    def fits(self, size: int) -> bool:
        """Say whether a slot of that size is free."""
        return rounded(size) <= self._free.longest

    def room(self, size: int, most: int) -> int:
        """Return how many slots of that size are free, one behind the other; at least one."""
        return max(1, min(most, self._free.longest // rounded(size)))

    def could_fit(self, size: int) -> bool:
        """Say whether a slot of that size would be free if all were."""
        return size <= self._free.size

    def take(self, size: int) -> tuple[int, int] | None:
        """Return begin and generation of a slot of that many bytes, or None if none is free."""
        begin = self._free.take(size)
        if begin is None:
            return None
        self._generation += 1
        self._lent[begin] = (self._generation, size)
        return begin, self._generation

    def give(self, begin: int, generation: int) -> None:
        """Take a slot back.

        Raises:
            BadArgumentError: The client does not have it.
        """
        lent = self._lent.get(begin)
        if lent is None or lent[0] != generation:
            raise BadArgumentError(
                f"the client released the slot at byte {begin} with generation {generation}; "
                f"it has {lent[0] if lent else 'no such slot'}",
                field="ring",
            )
        del self._lent[begin]
        self._free.give(begin, lent[1])

    def close(self) -> None:
        """Give the memory back; the client's mapping stays its own."""
        del self.array
        with contextlib.suppress(OSError):
            self.shared.close()
