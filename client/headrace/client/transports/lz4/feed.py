"""Read the messages of a call that are compressed.

Contract, besides that of `Feed`:

1. A compressed message says its size, at most `_MOST_BYTES`, before any memory is taken for it, and
   must have it.
2. Each is new memory, which belongs to its batch as a message's own does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.client.feeds.feed import Event
from headrace.client.feeds.grpc_feed import WireFeed
from headrace.client.feeds.transport_plugs import TransportPlug
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.transport import Transport
from headrace.client.servers.endpoints import Endpoint
from headrace.client.wire.frames import keep_freed_memory, payload_alone
from headrace.errors import NoTransportError, StreamCorruptError
from headrace.v1 import lz4_pb2
from headrace.v1 import shard_service_pb2 as pb

try:
    from lz4.block import LZ4BlockError, decompress
except ModuleNotFoundError:
    decompress = None

_VERSION = 1
_SIZE = struct.Struct("<I")
_MOST_BYTES = 4 << 20
"""The largest message of gRPC by its defaults."""


class Lz4Plug(TransportPlug):
    """Opens feeds whose messages are compressed."""

    @classmethod
    def is_tried(cls, options: Transport) -> bool:
        """Return False: who has bandwidth to spare would pay for nothing."""
        del options
        return False

    @contextmanager
    def open(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> Iterator[Lz4Feed]:
        """Open a stream, and close it with all its resources at the end."""
        if decompress is None:
            raise NoTransportError("there is no lz4 package here: pip install 'headrace[lz4]'")
        keep_freed_memory()
        asked = lz4_pb2.Lz4(version=_VERSION)
        with self.attached(asked, endpoint, request, clock) as call:
            version = call.offered(lz4_pb2.Lz4Offer).version
            if version != _VERSION:
                raise NoTransportError(
                    f"the server sends version {version} of compressed messages; this client "
                    f"reads version {_VERSION}"
                )
            transport = self.landing.transport
            transport.name, transport.reason, transport.shared_bytes = "lz4", "", 0
            yield Lz4Feed(call.wire)


class Lz4Feed:
    """One call with compressed messages.

    Args:
        wire: The call, after its offer.
    """

    def __init__(self, wire: WireFeed) -> None:
        self._wire = wire

    def events(self) -> Iterator[Event | None]:
        """Yield the stream's events; the module docstring and `Feed` hold the contract."""
        while (message := self._wire.next_message()) is not None:
            block = payload_alone(message)
            yield from self._wire.take_all(message if block is None else _content(block))

    def cancel(self) -> None:
        """End the call."""
        self._wire.cancel()


def _content(block: memoryview) -> bytes:
    """Return what was compressed.

    Raises:
        StreamCorruptError: It is damaged, or larger than a message can be.
    """
    assert decompress is not None
    if len(block) < _SIZE.size:
        raise StreamCorruptError(f"a compressed message has {len(block)} bytes; expected a size")
    (size,) = _SIZE.unpack(block[: _SIZE.size])
    if not 0 < size <= _MOST_BYTES:
        raise StreamCorruptError(
            f"a compressed message says that it has {size} bytes; expected 1 to {_MOST_BYTES}"
        )
    try:
        content: bytes = decompress(block[_SIZE.size :], uncompressed_size=size)
    except LZ4BlockError as error:
        raise StreamCorruptError(f"a compressed message is damaged: {error}") from error
    if len(content) != size:
        raise StreamCorruptError(f"a compressed message has {len(content)} bytes, and says {size}")
    return content
