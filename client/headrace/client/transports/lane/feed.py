"""The feed over a lane. gRPC carries only the offer and the status of the call.

Contract, besides that of `Feed`:

1. Every frame is checked before anything of it is received, and its payload goes straight into the
   memory of its batch.
2. A stream ends when its end frame came and the call is OK. If the connection ends before that, the
   call's status says why.
3. A connection that is silent, slower than `_PART_BYTES` in ``silence_s``, damaged or cut, while
   the call is not, is reported as broken, so that the next stream goes over gRPC.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from headrace.client.feeds.feed import Event
from headrace.client.feeds.grpc_feed import WireFeed
from headrace.client.feeds.transport import TransportState
from headrace.client.wire.assembler import BatchEvent
from headrace.client.wire.frames import memory_of, read_head
from headrace.errors import HeadraceError, ServerUnreachableError, StreamCorruptError
from headrace.lane import FRAME_BYTES, Frame, read_frame

_PART_BYTES = 1 << 20
"""What must come while a server may be silent: 35 KB/s by default."""
_AHEAD_BYTES = 4096
"""Received at once where a frame and a head are expected; what is of a payload is copied."""
_SMALL_BYTES = 4096
_TIMEVAL = struct.Struct("@ll")

_new = ctypes.pythonapi.PyBytes_FromStringAndSize
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)


class LaneFeed:
    """One call with its lane."""

    def __init__(
        self,
        wire: WireFeed,
        connection: socket.socket,
        *,
        transport: TransportState,
        silence_s: float,
        on_broken: Callable[[str], None],
    ) -> None:
        """Take over a lane that was just attached.

        Args:
            wire: The call, after its offer.
            connection: The lane.
            transport: Counts the batches.
            silence_s: How long the server may be silent.
            on_broken: Called with the reason why the lane should not be used again soon.
        """
        self._wire, self._connection, self._transport = wire, connection, transport
        self._silence_s, self._on_broken = silence_s, on_broken
        _set_timeout(connection, silence_s)
        # Each system call may cost 5 ms where the loop keeps Python busy, so there are few.
        self._flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL
        self._ahead = bytearray(_AHEAD_BYTES)
        self._ahead_start = self._ahead_end = 0
        self._number = 0
        self._since, self._since_bytes = 0.0, 0

    def events(self) -> Iterator[Event | None]:
        """Yield the stream's events; `Feed` holds the contract."""
        try:
            while (found := self._next_frame()).head_bytes:
                for event in self._take(found):
                    if isinstance(event, BatchEvent):
                        self._transport.batch_count += 1
                    yield event
        except StreamCorruptError as error:
            self._on_broken(f"it brought damaged bytes ({error.message})")
            raise
        if self._wire.next_message() is not None:
            raise StreamCorruptError("the server sent a message on the call of a lane")

    def cancel(self) -> None:
        """End the call, and the wait for the connection."""
        self._wire.cancel()
        with contextlib.suppress(OSError):
            # Not that of TLS, which would let the reading thread read on in plain text.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def _next_frame(self) -> Frame:
        self._since, self._since_bytes = time.monotonic(), 0
        while self._ahead_end - self._ahead_start < FRAME_BYTES:
            self._receive_ahead()
        start, number = self._ahead_start, self._number
        self._ahead_start, self._number = start + FRAME_BYTES, number + 1
        frame = self._ahead[start : start + FRAME_BYTES]
        return read_frame(frame, number)

    def _take(self, found: Frame) -> Iterator[Event | None]:
        head_bytes, payload_bytes = found
        if payload_bytes:
            head = bytearray(head_bytes)
            self._receive_all(memoryview(head))
            yield self._wire.receive(read_head(bytes(head), payload_bytes), self._pieces)
        elif head_bytes <= _SMALL_BYTES:
            head = bytearray(head_bytes)
            self._receive_all(memoryview(head))
            yield from self._wire.take_all(bytes(head))
        else:
            # Several batches, which stay where they are received.
            yield from self._wire.take_all(self._message(head_bytes))

    def _message(self, size: int) -> bytes:
        """Receive a message into memory of its own, to which there is no other reference."""
        message: bytes = _new(None, size)
        # Nobody has read it, so it may be written to.
        self._receive_all(memory_of(message).data)
        return message

    def _pieces(self, place: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
        self._receive_all(place.data)
        yield place

    def _receive_ahead(self) -> None:
        """Receive what is there, after what is left."""
        left = self._ahead[self._ahead_start : self._ahead_end]
        self._ahead[: len(left)] = left
        self._ahead_start = 0
        with memoryview(self._ahead) as place:
            self._ahead_end = len(left) + self._receive(place[len(left) :], 0)

    def _receive_all(self, left: memoryview) -> None:
        start = self._ahead_start
        size = min(left.nbytes, self._ahead_end - start)
        left[:size] = self._ahead[start : start + size]
        self._ahead_start = start + size
        left = left[size:]
        while left.nbytes:
            left = left[self._receive(left, self._flags) :]

    def _receive(self, place: memoryview, flags: int) -> int:
        try:
            count = self._connection.recv_into(place, 0, flags)
        except (BlockingIOError, TimeoutError):
            self._raise_silent()
        except OSError as error:
            self._raise_ended(error)
        if not count:
            self._raise_ended(None)
        self._since_bytes += count
        now = time.monotonic()
        if self._since_bytes >= _PART_BYTES:
            self._since, self._since_bytes = now, 0
        elif now - self._since > self._silence_s:
            self._raise_silent()
        return count

    def _raise_silent(self) -> NoReturn:
        target, silence_s = self._wire.target, self._silence_s
        self._on_broken(f"nothing, or nearly nothing, came for {silence_s:.0f} s")
        raise ServerUnreachableError(
            f"the lane of {target} brought nothing, or less than a MiB, for {silence_s:.0f} s, not "
            "even a heartbeat; the server, or the network to it, is stuck",
            target=target,
        ) from None

    def _raise_ended(self, cause: OSError | None) -> NoReturn:
        """Raise why the connection ended before the stream did."""
        why = "the connection was closed" if cause is None else str(cause)
        try:
            message = self._wire.next_message()
        except HeadraceError as error:
            if error.metadata.get("lane"):
                self._on_broken(f"its connection broke ({why})")
            raise
        raise StreamCorruptError(
            f"the lane of {self._wire.target} ended ({why}) before its stream, whose call "
            f"{'is OK' if message is None else 'has sent a message'}"
        )


def _set_timeout(connection: socket.socket, silence_s: float) -> None:
    if isinstance(connection, ssl.SSLSocket):
        connection.settimeout(silence_s)
        return
    # The kernel's own timeout: Python's would take two system calls for each wait.
    connection.settimeout(None)
    whole_s, part_s = divmod(silence_s, 1)
    timeout = _TIMEVAL.pack(int(whole_s), max(1, int(part_s * 1e6)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
