"""How batches get to a trainer: the way, the memory, the patience, and other servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.arguments import flag, instance, instance_or_none, one_of, whole, whole_or_none
from headrace.client.options.private import Fallback, PrivateServer
from headrace.client.options.settings import (
    DEFAULT_MAX_BATCH_BYTES,
    DEFAULT_PREFETCH_BYTES,
    Deadlines,
    Hedge,
)

TransportKind = Literal["auto", "ring", "grpc"]

_LEAST_RING_BYTES = 32 << 20
"""Space for some batches if none are held ready. Arbitrary."""
_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Transport:
    """How batches get to this process, how much memory they may use, and how long to wait.

    Attributes:
        kind: ``"auto"`` uses shared memory if the address is the unix socket of a server on this
            host that makes rings, and gRPC otherwise; ``"ring"`` and ``"grpc"`` use only one of
            them. `RemoteDataset.stats` says which is used, and why.
        prefetch_bytes: Most bytes to hold ready, >= 0, on the device too if there is one; the
            default is arbitrary.
        max_batch_bytes: Most payload bytes of a batch, >= 1: a larger batch is refused, and no
            memory is allocated for it, whatever the server says.
        ring_bytes: Size of the shared memory to ask for, >= 0; the server may give less. None for
            twice ``prefetch_bytes``, if that is set: half for waiting batches, half for batches in
            use. 0, or None with the default ``prefetch_bytes``, leaves it to the server, which
            takes 128 MiB or room for three batches.
        check_ring: Whether the server hashes payloads in shared memory and the client verifies
            them, as over gRPC; costs a pass over them on both sides.
        deadlines: How long to wait.
        hedge: When to ask a second server for a late batch; None for never. It has no effect with
            a single server, or in DataLoader workers.
        fallback: Where to read the same batches while no server answers; None to wait for a
            server. Needs the ``[server]`` extra.
        private: Settings of a private server, for ``target=None`` and for ``fallback``.

    Raises:
        BadArgumentError: A value is out of range.
    """

    kind: TransportKind = "auto"
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    ring_bytes: int | None = None
    check_ring: bool = False
    deadlines: Deadlines = field(default_factory=Deadlines)
    hedge: Hedge | None = None
    fallback: Fallback | None = None
    private: PrivateServer = field(default_factory=PrivateServer)

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        one_of("transport.kind", self.kind, ("auto", "ring", "grpc"))
        for name, least in (("prefetch_bytes", 0), ("max_batch_bytes", 1)):
            value = whole(f"transport.{name}", getattr(self, name), low=least, high=_MOST_BYTES)
            object.__setattr__(self, name, value)
        ring = whole_or_none("transport.ring_bytes", self.ring_bytes, low=0, high=_MOST_BYTES)
        object.__setattr__(self, "ring_bytes", ring)
        flag("transport.check_ring", self.check_ring)
        instance("transport.deadlines", self.deadlines, Deadlines, wanted="Deadlines(connect_s=…)")
        instance_or_none("transport.hedge", self.hedge, Hedge, wanted="a Hedge(…), or None")
        wanted = "Fallback('s3://bucket/path'), or None"
        instance_or_none("transport.fallback", self.fallback, Fallback, wanted=wanted)
        wanted = "PrivateServer(cache_bytes=…, store={…})"
        instance("transport.private", self.private, PrivateServer, wanted=wanted)

    @property
    def wanted_ring_bytes(self) -> int:
        """Bytes of shared memory to ask for; 0 leaves it to the server."""
        if self.ring_bytes is None:
            if self.prefetch_bytes == DEFAULT_PREFETCH_BYTES:
                return 0
            return max(_LEAST_RING_BYTES, 2 * self.prefetch_bytes)
        return self.ring_bytes


def transport_of(transport: Transport | None) -> Transport:
    """Return the transport that an argument means; None for the defaults."""
    wanted = "Transport('ring'), Transport(prefetch_bytes=…), or None"
    return instance_or_none("transport", transport, Transport, wanted=wanted) or Transport()
