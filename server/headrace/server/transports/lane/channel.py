"""The server's end of a lane: it sends messages, and its waits can be ended.

Contract:

1. `send` returns True when the kernel has all bytes. While the client does not read, it waits.
2. `wake`, from any thread, ends the current wait and all later ones; `send` then returns False.
3. If the connection is broken, `send` raises `OSError`.
4. Nothing that the client says after its hello is read.

A wait is one in the kernel, without Python's lock: each return from it may cost 5 ms where other
threads are busy.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable

_LONG_S = 60.0


class LaneChannel:
    """Send to one client; for one thread, except for `wake`.

    Args:
        connection: A connection to the client; closed with the channel.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_encrypted = isinstance(connection, ssl.SSLSocket)
        connection.settimeout(_LONG_S if self._is_encrypted else None)
        self._lock = threading.Lock()
        self._is_closed = False
        self.is_woken = False

    def send(
        self, *parts: bytes, on_late: Callable[[], None] = lambda: None, late_s: float = 0.0
    ) -> bool:
        """Send parts, one after the other; return False only if the wait was ended before that.

        Args:
            parts: The parts.
            on_late: Called once if they are not sent after a time.
            late_s: That time in seconds; 0 for none.

        Raises:
            OSError: The connection is broken.
        """
        left = [memoryview(part) for part in parts]
        late_at = time.monotonic() + late_s if late_s else 0.0
        send_some = self._send_record if self._is_encrypted else self._send_plain
        try:
            while left and not self.is_woken:
                wait_s = late_at - time.monotonic() if late_at else _LONG_S
                if wait_s <= 0:
                    late_at = 0.0
                    on_late()
                    continue
                _drop(left, send_some(left, wait_s if late_at else 0.0))
        except OSError:
            if not self.is_woken:
                raise
        return not left

    def wake(self) -> None:
        """End all waits."""
        self.is_woken = True
        with self._lock, contextlib.suppress(OSError):
            if not self._is_closed:
                # Not that of TLS, which would let the sending thread go on in plain text.
                socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection when all that was sent is there; do not wait for that."""
        with self._lock:
            self._is_closed = True
            self._connection.close()

    def _send_plain(self, left: list[memoryview], wait_s: float) -> int:
        """Send what can be sent within a time, or some for 0; return the number of bytes."""
        if not wait_s:
            return self._connection.sendmsg(left)
        try:
            return self._connection.sendmsg(left, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            poll = select.poll()
            poll.register(self._connection, select.POLLOUT)
            poll.poll(wait_s * 1000)
            return 0

    def _send_record(self, left: list[memoryview], wait_s: float) -> int:
        self._connection.settimeout(wait_s or _LONG_S)
        try:
            return self._connection.send(left[0])
        except TimeoutError:
            return 0


def _drop(left: list[memoryview], sent: int) -> None:
    """Remove what was sent."""
    while left and sent >= left[0].nbytes:
        sent -= left.pop(0).nbytes
    if sent:
        left[0] = left[0][sent:]
