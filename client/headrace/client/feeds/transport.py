"""Which way batches come: through a ring where client and server share a host, else over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.arguments import flag, one_of, whole
from headrace.client.options.settings import DEFAULT_MAX_BATCH_BYTES
from headrace.client.wire.assembler import Allocate, Keep
from headrace.client.wire.message_memory import memory_of

TransportChoice = Literal["auto", "ring", "grpc"]

Adopt = Callable[[NDArray[np.uint8]], None]
"""Is given the memory of each new ring, ``(ring_bytes,) uint8``."""


_LEAST_BYTES = 32 << 20
"""Room for some batches where nothing is to be held ready. Arbitrary."""


@dataclass(frozen=True, slots=True)
class RingOptions:
    """What a dataset wants of rings.

    Attributes:
        transport: ``auto`` for a ring where one can be had, ``ring`` for an error where none can,
            ``grpc`` for none.
        ring_bytes: Size to ask for, >= 0; 0 leaves it to the server.
        check_payload: Whether payloads in a ring are hashed by the server and here.
    """

    transport: TransportChoice = "auto"
    ring_bytes: int = 0
    check_payload: bool = False

    def __post_init__(self) -> None:
        """Refuse what nobody can mean."""
        one_of("transport", self.transport, ("auto", "ring", "grpc"))
        ring_bytes = whole("ring_bytes", self.ring_bytes, low=0, high=1 << 62)
        object.__setattr__(self, "ring_bytes", ring_bytes)
        flag("check_ring", self.check_payload)


def ring_options(
    transport: TransportChoice, ring_bytes: int | None, prefetch_bytes: int, *, check: bool
) -> RingOptions:
    """Return what a dataset wants of rings.

    Args:
        transport: As in `RingOptions`.
        ring_bytes: Likewise; None for what the prefetch needs.
        prefetch_bytes: Most bytes to hold ready.
        check: Whether payloads are hashed.
    """
    if ring_bytes is None:
        ring_bytes = max(_LEAST_BYTES, 2 * prefetch_bytes)
    return RingOptions(transport, ring_bytes, check)


@dataclass(slots=True)
class Transport:
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
    transport: Transport
    keep: Keep | None = memory_of
    takes_runs: bool = False
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
