"""Compress the messages of a call, one by one, where that makes them smaller.

Contract:

1. A message is sent compressed if that leaves at most `_WORTH` of it, and as it is otherwise.
2. After a message that did not shrink, the next ones at its place in a batch are sent without a
   try: one at first, twice as many after each such try in a row, up to `_MOST_SKIPPED`. A batch is
   sent column after column, so columns that LZ4 cannot shrink, such as JPEG, cost a try in 65
   batches, and those beside them shrink all the same.
3. Messages are compressed in the thread that sends them, without Python's lock, while the next are
   made.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from google.protobuf.message import Message

from headrace.errors import NoTransportError
from headrace.server.batch.targets import WireOutlet, payload_message
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.encode_thread import Messages
from headrace.server.stream.transport_plugs import Attaching, TransportPlug
from headrace.server.telemetry.metrics import Metrics
from headrace.server.transports.lz4.metrics import Lz4Metrics
from headrace.v1 import lz4_pb2 as pb
from headrace.v1.shard_service_pb2 import Chunk, ReadBatchesResponse

try:
    from lz4.block import compress
except ModuleNotFoundError:
    compress = None

_VERSION = 1
_SMALLEST = 512
"""Bytes: heartbeats, ends of epochs and the like are not worth a call."""
_WORTH = 0.9
_MOST_SKIPPED = 64
_CHUNK = ReadBatchesResponse(chunk=Chunk()).SerializeToString()[:1]
"""How each message of a batch begins but the first."""


@dataclass(slots=True)
class _Tries:
    """How many messages in a row are sent without a try, and how many of these are to come."""

    skipping: int = 0
    left: int = 0


class Compression(TransportPlug):
    """Give streams compressed messages."""

    options = pb.Lz4

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        del config
        self._metrics = Lz4Metrics(metrics.registry)

    def attach(self, options: Message, asking: Attaching) -> Generator[Message, None, Lz4Outlet]:
        """Offer compression to a call's client."""
        assert isinstance(options, pb.Lz4)
        if options.version != _VERSION:
            raise NoTransportError(
                f"the client asks for version {options.version} of compressed messages; this "
                f"server has version {_VERSION}"
            )
        if compress is None:
            raise NoTransportError(
                "this server has no lz4 package: install it there by pip install 'headrace[lz4]'"
            )
        yield pb.Lz4Offer(version=_VERSION)
        contents = asking.contents
        return Lz4Outlet(
            contents.max_chunk_bytes,
            group_bytes=contents.max_group_bytes,
            on_message=self._metrics.sent,
        )


class Lz4Outlet(WireOutlet):
    """Sends batches in messages of a call, compressed where they shrink.

    Args:
        max_chunk_bytes: The largest payload of one message, before compression.
        group_bytes: The largest message with several batches; 0 if there may be none.
        on_message: Told the bytes of each message before and after.
    """

    def __init__(
        self, max_chunk_bytes: int, *, group_bytes: int, on_message: Callable[[int, int], None]
    ) -> None:
        super().__init__(max_chunk_bytes, group_bytes=group_bytes)
        self._on_message = on_message
        self._place = 0
        self._tries: defaultdict[int, _Tries] = defaultdict(_Tries)

    def running(self, stream: Messages, ahead: Callable[[], Messages]) -> Messages:
        """Return the messages, made ahead as those of gRPC are."""
        del stream
        return ahead()

    def carried(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield all messages, compressed where they shrink."""
        for message in messages:
            sent = self._smaller(message)
            self._on_message(len(message), len(sent))
            yield sent

    def _smaller(self, message: bytes) -> bytes:
        if len(message) < _SMALLEST:
            return message
        self._place = self._place + 1 if message.startswith(_CHUNK) else 0
        tries = self._tries[self._place]
        if tries.left:
            tries.left -= 1
            return message
        assert compress is not None
        block: bytes = compress(message)
        if len(block) > _WORTH * len(message):
            tries.skipping = tries.left = min(2 * tries.skipping or 1, _MOST_SKIPPED)
            return message
        tries.skipping = 0
        return payload_message(block)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
