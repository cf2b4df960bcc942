"""Hand rings to clients over a unix socket beside gRPC's.

Contract:

1. The connection of a client with a valid ticket is passed to the stream that waits for it. Each
   ticket is valid once.
2. A client of a user that is not allowed, or without a valid ticket, is told why and disconnected.
3. A client that sends nothing is disconnected after ``WAIT_S``, and delays no other.
4. While there is no descriptor for another client, clients wait to be accepted.
5. `close` ends the thread and all waits for clients, and removes the socket.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
import struct
import threading
import time
from collections.abc import Collection
from pathlib import Path

from headrace.ring import TICKET_BYTES, refusal
from headrace.server.access.unix_clients import accept
from headrace.server.stream.tickets import WAIT_S, Ticket, Tickets

# How often silent clients are looked for (arbitrary), and how many there may be.
_LOOK_S = 1.0
_MOST_SILENT = 64
_CREDENTIALS = struct.Struct("3i")


class RingDoor:
    """Listen on one path, after `start`.

    Args:
        path: The path of the socket.
        mode: Its permissions.
        uids: The ids of the users that are allowed.

    Attributes:
        tickets: Those of the clients that may come.
    """

    def __init__(self, path: str, *, mode: int, uids: Collection[int]) -> None:
        self._path = path
        self._mode = mode
        self._uids = frozenset(uids)
        self.tickets: Tickets[Ticket] = Tickets()
        self._silent: dict[socket.socket, float] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._selector = selectors.DefaultSelector()
        self._wake_fd = -1
        self._thread = threading.Thread(target=self._run, name="headrace-ring-door", daemon=True)

    def start(self) -> None:
        """Bind the socket and start to listen.

        Raises:
            OSError: The path cannot be bound.
        """
        # A stopped server left it; gRPC's own socket shows whether a server still runs here.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(Path(self._path).stat().st_mode):
                raise FileExistsError(f"a file of that name exists: {self._path}")
            Path(self._path).unlink()
        before = os.umask(0o777 & ~self._mode)
        try:
            self._listener.bind(self._path)
        finally:
            os.umask(before)
        self._listener.listen(_MOST_SILENT)
        self._listener.setblocking(False)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Accept no more clients."""
        if not self.tickets.close():
            return
        if self._thread.ident is not None:
            os.eventfd_write(self._wake_fd, 1)
            self._thread.join()
            os.close(self._wake_fd)
            with contextlib.suppress(OSError):
                Path(self._path).unlink()
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self.tickets.is_closed:
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._listener:
                    connection = accept(self._listener)
                    if connection is not None:
                        self._receive(connection)
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj)
            now = time.monotonic()
            for silent in [one for one, since in self._silent.items() if now > since + WAIT_S]:
                self._drop(silent)
        for left in list(self._silent):
            self._drop(left)

    def _receive(self, connection: socket.socket) -> None:
        uid = _uid_of(connection)
        if uid not in self._uids:
            allowed = ", ".join(map(str, sorted(self._uids)))
            _refuse(
                connection,
                f"user {uid} may not have a ring of this server, only {allowed} may; start the "
                "server with --ring-uids",
            )
        elif len(self._silent) >= _MOST_SILENT:
            _refuse(connection, "too many clients are asking for rings at once")
        else:
            self._silent[connection] = time.monotonic()
            self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            # A client sends the ticket in one piece, and nothing else before it has its ring.
            said = connection.recv(TICKET_BYTES)
        except OSError:
            said = b""
        self._selector.unregister(connection)
        del self._silent[connection]
        ticket = self.tickets.take(said)
        if ticket is None:
            _refuse(connection, "the ticket is not from this server, or was used before")
        else:
            ticket.give(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._silent[connection]
        connection.close()


def _uid_of(connection: socket.socket) -> int:
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(said)
    return int(uid)


def _refuse(connection: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        connection.send(refusal(why))
    connection.close()
