"""Send a stream's messages over its lane.

Contract:

1. The messages are those that gRPC would carry, in their order; the end frame follows the last one,
   and only that. A client that gets no end frame learns from the call's status why.
2. When the call has ended, however, nothing more is sent, and every wait ends.
3. A broken connection ends the call with `RebalanceError`, whose metadata names the lane, so that
   the client reads on over gRPC.
4. Streams take turns at sending as over gRPC (`SendTurns`).

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from headrace.errors import RebalanceError
from headrace.lane import end_frame, frame
from headrace.server.batch.targets import WireOutlet
from headrace.server.stream.encode_thread import Messages
from headrace.server.stream.transport_plugs import Attaching, AttachingCall
from headrace.server.transports.lane.channel import LaneChannel
from headrace.v1 import shard_service_pb2 as pb

_SEVERAL = pb.ReadBatchesResponse.DESCRIPTOR.fields_by_name["messages"].number << 3 | 2
_PAYLOAD_TAG_BYTES = 2
_MORE = 0x80

_HOLD_S = 0.004
"""A little less than `SendTurns` lets a message hold its turn."""


class LaneOutlet(WireOutlet):
    """Accept the batches of one stream, according to the contract above.

    Args:
        channel: A channel to its client, closed with the outlet.
        asking: The stream.
        on_sent: Called with the bytes of each message that was sent.
        on_close: Called once, when the lane is closed.
    """

    def __init__(
        self,
        channel: LaneChannel,
        asking: Attaching,
        *,
        on_sent: Callable[[int], None],
        on_close: Callable[[], None],
    ) -> None:
        contents = asking.contents
        super().__init__(contents.max_chunk_bytes, group_bytes=contents.max_group_bytes)
        self._channel = channel
        self._call: AttachingCall = asking.call
        self._send_in_turn = asking.sender(self)
        self._on_sent, self._on_close = on_sent, on_close
        self._number = 0
        self._is_closed = False

    def running(self, stream: Messages, ahead: Callable[[], Messages]) -> Messages:
        """Return the messages of the stream, made ahead."""
        del stream
        return ahead()

    def carried(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Send all messages over the lane, and yield none."""
        self._send_all(messages)
        yield from ()

    @property
    def line(self) -> str:
        """The caller."""
        return self._call.line

    @property
    def is_active(self) -> bool:
        """Whether the client waits for more."""
        return self._call.is_active and not self._channel.is_woken

    def send(self, message: bytes) -> bool:
        """Send a message and wait until it is sent; return whether more may follow."""
        return self._send(message, lambda: None, 0.0)

    def send_soon(self, message: bytes, on_sent: Callable[[], None]) -> bool:
        """Send a message; call ``on_sent`` when it is sent, or takes longer than a turn lasts."""
        over = False

        def end_turn() -> None:
            nonlocal over
            if not over:
                over = True
                on_sent()

        is_sent = self._send(message, end_turn, _HOLD_S)
        if is_sent:
            end_turn()
        return is_sent

    def close(self) -> None:
        """Close the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._channel.close()
            self._on_close()

    def _send_all(self, messages: Iterable[bytes]) -> None:
        try:
            for message in messages:
                if not self._send_in_turn(message):
                    return
            self._channel.send(end_frame(self._number))
        except OSError as error:
            raise RebalanceError(
                f"the connection of this stream's lane broke ({error.strerror or error}); "
                "reconnect to continue",
                lane="broken",
            ) from error

    def _send(self, message: bytes, on_late: Callable[[], None], late_s: float) -> bool:
        start = _payload_start(message)
        prefix = frame(self._number, start, len(message) - start)
        if not self._channel.send(prefix, message, on_late=on_late, late_s=late_s):
            return False
        self._number += 1
        self._on_sent(len(message))
        return True


def _payload_start(message: bytes) -> int:
    """Return where a message's payload starts; its end if it has none, or holds several batches.

    Args:
        message: As `headrace.server.batch.targets` writes it: an event, then perhaps a payload.
    """
    if message[0] == _SEVERAL:
        return len(message)
    event_end = _end_of_field(message, 1)
    if event_end == len(message):
        return event_end
    return _after_number(message, event_end + _PAYLOAD_TAG_BYTES)


def _end_of_field(message: bytes, at: int) -> int:
    """Return where a field ends whose length is at a place."""
    start, size = _after_number(message, at), 0
    for byte in reversed(message[at:start]):
        size = size << 7 | byte & ~_MORE
    return start + size


def _after_number(message: bytes, at: int) -> int:
    while message[at] & _MORE:
        at += 1
    return at + 1
