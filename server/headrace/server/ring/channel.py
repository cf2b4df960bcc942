"""The server's end of a ring's socket: records out and in, and waits that can be ended.

Contract:

1. `send` returns True when the records are on their way. While the client reads none it waits, and
   takes what the client says meanwhile, so that two full sockets never wait for each other.
2. `wake`, from any thread, ends every wait, now and from then on.
3. A client that is gone is `ClientGoneError`, in whatever is asked next, and one that says what
   nobody understands `BadArgumentError`.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import os
import select
import socket

from headrace.errors import BadArgumentError, StreamCorruptError
from headrace.ring import Record, RecordReader
from headrace.server.batch.targets import ClientGoneError

_RECEIVE_BYTES = 65536


class RingChannel:
    """Speaks to one client; for one thread, except for `wake`.

    Args:
        connection: A connection to the client, closed with the channel.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._reader = RecordReader()
        self._received: list[Record] = []
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_woken = False

    def send(self, records: bytes) -> bool:
        """Send records; return whether they were sent, which they are unless the wait was ended."""
        while True:
            try:
                # So little goes into the socket's queue whole or not at all.
                self._connection.send(records)
            except BlockingIOError:
                if self.is_woken:
                    return False
                self._poll(select.POLLIN | select.POLLOUT)
                self._receive()
            except OSError as error:
                raise ClientGoneError from error
            else:
                return True

    def take(self) -> list[Record]:
        """Return what the client has said; does not wait."""
        self._receive()
        received, self._received = self._received, []
        return received

    def wait(self) -> None:
        """Return when the client has said something, or is gone, or `wake` was called."""
        if not self._received:
            self._poll(select.POLLIN)

    def wake(self) -> None:
        """End all waits."""
        self.is_woken = True
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close the socket: the client then looks at how the call ended."""
        self._connection.close()
        fd, self._wake_fd = self._wake_fd, -1
        os.close(fd)

    def _receive(self) -> None:
        try:
            said = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise ClientGoneError from error
        if not said:
            raise ClientGoneError
        try:
            self._received += self._reader.feed(said)
        except StreamCorruptError as error:
            # It is the client's fault, and none of the data's.
            raise BadArgumentError(
                "the client sent something other than a record on its ring's socket: "
                f"{error.message}; use a client of this version",
                field="ring",
            ) from error

    def _poll(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._connection, events)
        poll.register(self._wake_fd, select.POLLIN)
        poll.poll()
