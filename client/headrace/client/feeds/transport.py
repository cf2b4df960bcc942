"""Which way batches come: through a ring where client and server share a host, else over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.client.options.settings import DEFAULT_MAX_BATCH_BYTES
from headrace.client.wire.assembler import Allocate, Keep
from headrace.client.wire.message_memory import memory_of

Adopt = Callable[[NDArray[np.uint8]], None]
"""Is given the memory of each new ring, ``(ring_bytes,) uint8``."""


@dataclass(slots=True)
class TransportState:
    """Which way batches come at the moment, and why; written by the reading thread.

    Attributes:
        name: ``ring`` or ``grpc``; empty before the first stream.
        reason: Why not a ring, or why a smaller one than asked for; else empty.
        ring_bytes: Size of the ring; 0 without one.
        ring_batch_count: Batches that came through rings, over all streams.
    """

    name: str = ""
    reason: str = ""
    ring_bytes: int = 0
    ring_batch_count: int = 0

    def has_ring(self) -> bool:
        """Say whether the server works ahead into memory that we see."""
        return self.ring_bytes > 0

    def ready_bytes(self, wanted: int) -> int:
        """Return how many bytes may be held ready: half of a ring, so that the other half flows."""
        return min(wanted, self.ring_bytes // 2) if self.ring_bytes else wanted


@dataclass(frozen=True, slots=True)
class Landing:
    """Where the payloads of a reader go, and whom its feeds tell.

    Attributes:
        allocate: Returns memory for payloads that come in messages.
        adopt: Is given the memory of each ring.
        transport: Is told which way batches come.
        keep: Makes a message memory of its batch; None where payloads must go to ``allocate``.
        takes_runs: Whether batches that lie in a ring may come together (`BatchEvent.ahead`).
        max_batch_bytes: Most payload bytes of a batch, whatever a server says.
    """

    allocate: Allocate
    adopt: Adopt | None
    transport: TransportState
    keep: Keep | None = memory_of
    takes_runs: bool = False
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
