"""The memory of one ring: allocated, sealed, and lent slot by slot."""

from __future__ import annotations

import contextlib
import fcntl
import os

from headrace.errors import BadArgumentError
from headrace.server.cache.memory.arena import ExtentAllocator, rounded
from headrace.server.cache.memory.shared_memory import Shared

# The seals prevent anyone from shrinking the memory under a reader, or from removing the seals.
# Writing stays allowed, since tensors are writable. A private mapping would allow it too, but would
# keep showing what a client wrote after the slot is rewritten, and cannot be pinned.
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")  # by name: Linux alone has them

IS_SUPPORTED = hasattr(os, "memfd_create") and hasattr(os, "eventfd")


class RingMemory:
    """The slots of one stream's ring; for one thread.

    The client may write to the memory as well as the server, so nothing is read back from it: this
    object records who has which slot.

    Args:
        size: The size of the ring in bytes.

    Attributes:
        shared: The file descriptor's memory, to pass to the client.
        array: The memory as ``(size,) uint8``.
    """

    def __init__(self, size: int) -> None:
        self.shared = Shared.create("headrace-ring", size)
        try:
            self.array = self.shared.map()
            seals = sum(getattr(fcntl, name) for name in _SEALS)
            fcntl.fcntl(self.shared.fd, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            self.shared.close()
            raise
        self._free = ExtentAllocator(size)
        self._lent: dict[int, tuple[int, int]] = {}
        self._generation = 0

    @property
    def lent_count(self) -> int:
        """Return the number of slots that the client has, or is about to get."""
        return len(self._lent)

    def fits(self, size: int) -> bool:
        """Return whether a slot of that size is free."""
        return rounded(size) <= self._free.longest

    def room(self, size: int, most: int) -> int:
        """Return the number of consecutive free slots of that size, at least one."""
        return max(1, min(most, self._free.longest // rounded(size)))

    def could_fit(self, size: int) -> bool:
        """Return whether a slot of that size fits into an empty ring."""
        return size <= self._free.size

    def take(self, size: int) -> tuple[int, int] | None:
        """Return the offset and the generation of a free slot of that size, or None."""
        start = self._free.take(size)
        if start is None:
            return None
        self._generation += 1
        self._lent[start] = (self._generation, size)
        return start, self._generation

    def give(self, start: int, generation: int) -> None:
        """Take a slot back.

        Raises:
            BadArgumentError: The client does not have it.
        """
        lent = self._lent.get(start)
        if lent is None or lent[0] != generation:
            raise BadArgumentError(
                f"the client released the slot at byte {start} with generation {generation}; "
                f"it has {lent[0] if lent else 'no such slot'}",
                field="ring",
            )
        del self._lent[start]
        self._free.give(start, lent[1])

    def close(self) -> None:
        """Free the memory; the client's own mapping remains valid."""
        del self.array
        with contextlib.suppress(OSError):
            self.shared.close()
