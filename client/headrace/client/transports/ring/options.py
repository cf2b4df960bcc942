"""What a user may set of the ring."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.arguments import flag, whole_or_none
from headrace.client.options.settings import DEFAULT_PREFETCH_BYTES
from headrace.client.options.transport import Transport, TransportOptions

_LEAST_BYTES = 32 << 20
"""Space for some batches if none are held ready. Arbitrary."""
_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Ring(TransportOptions):
    """Options of the ring: the memory that a client shares with a server on its host.

    Attributes:
        ring_bytes: Size of the shared memory to ask for, >= 0; the server may give less. None for
            twice ``prefetch_bytes``, if that is set: half for waiting batches, half for batches in
            use. 0, or None with the default ``prefetch_bytes``, leaves it to the server, which
            takes 128 MiB or room for three batches.
        check_payload: Whether the server hashes payloads in shared memory and the client verifies
            them, as over gRPC; costs a pass over them on both sides.

    Raises:
        BadArgumentError: A value is out of range.
    """

    ring_bytes: int | None = None
    check_payload: bool = False

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        size = whole_or_none("ring.ring_bytes", self.ring_bytes, low=0, high=_MOST_BYTES)
        object.__setattr__(self, "ring_bytes", size)
        flag("ring.check_payload", self.check_payload)

    def wanted_bytes(self, transport: Transport) -> int:
        """Return the bytes of shared memory to ask for; 0 leaves it to the server."""
        if self.ring_bytes is not None:
            return self.ring_bytes
        if transport.prefetch_bytes == DEFAULT_PREFETCH_BYTES:
            return 0
        return max(_LEAST_BYTES, 2 * transport.prefetch_bytes)
