"""The server's end of a ring's socket: it sends and receives records, and its waits can be ended.

Contract:

1. `send` returns True when the records have been sent. While the client does not read, it waits and
   receives the client's records, so that two full sockets never wait for each other.
2. `wake`, from any thread, ends the current wait and all later ones.
3. If the client has disconnected, the next call raises `ClientGoneError`; if it sent something
   invalid, or `_MOST_RECORDS` while it reads nothing, `BadArgumentError`.

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
# More than a client has slots to release (arbitrary; they take about 40 MiB).
_MOST_RECORDS = 1 << 18


class RingChannel:
    """Exchange records with one client; for one thread, except for `wake`.

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
        """Send records; return False only if the wait was ended before that."""
        while True:
            try:
                # Records this small are queued by the socket as a whole or not at all.
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
        """Return the records that the client has sent, without waiting."""
        self._receive()
        received, self._received = self._received, []
        return received

    def wait(self) -> None:
        """Wait until the client has sent something or disconnected, or `wake` was called."""
        if not self._received:
            self._poll(select.POLLIN)

    def wake(self) -> None:
        """End all waits."""
        self.is_woken = True
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close the socket; the client then reads the status of the call."""
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
            # The error is the client's, not the data's.
            raise BadArgumentError(
                f"the client sent an invalid record on its ring's socket: {error.message}; use a "
                "client of this version",
                field="ring",
            ) from error
        if len(self._received) > _MOST_RECORDS:
            raise BadArgumentError(
                f"the client sent more than {_MOST_RECORDS} records on its ring's socket, and read "
                "none; use a client of this version",
                field="ring",
            )

    def _poll(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._connection, events)
        poll.register(self._wake_fd, select.POLLIN)
        poll.poll()
