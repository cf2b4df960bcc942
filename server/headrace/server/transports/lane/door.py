"""Let the clients of streams in at the lane's port.

Contract:

1. The connection of a client with a valid ticket, which is its stream's, is passed to the stream
   that waits for it. Each ticket is valid once, also for somebody whose stream it is not.
2. Anybody else is told that, or nothing, and disconnected.
3. A client that has not shown a ticket after `_HELLO_S`, with its TLS handshake, is disconnected,
   and delays no other. There are at most `MOST_STRANGERS`; when one more comes, the oldest of the
   address that has the most of them is disconnected.
4. While there is no descriptor for another client, clients wait to be accepted.
5. `close` ends the thread and all waits for clients.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.lane import HELLO_BYTES, answer, read_hello
from headrace.server.access.unix_clients import accept
from headrace.server.stream.tickets import Tickets
from headrace.server.transports.lane.encryption import Encryption
from headrace.server.transports.lane.tickets import LaneTicket, address_of

MOST_STRANGERS = 64
"""Connections without a ticket (arbitrary)."""

_HELLO_S = 5.0
"""As long as gRPC's own handshake may take."""
_LOOK_S = 0.25


class DoorObserver(Protocol):
    """What a door reports."""

    def refused(self, reason: str) -> None:
        """Count a connection that was closed."""


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection that has not shown its ticket."""

    connection: socket.socket
    address: str
    since: float
    is_greeted: bool
    heard: bytearray = field(default_factory=bytearray)


class LaneDoor:
    """Listen, after `start`.

    Args:
        listeners: Sockets that listen, closed with the door.
        encryption: Makes connections TLS; None for plain text.
        observer: Receives reports.
        hello_s: How long a client may take to show its ticket.

    Attributes:
        port: The port of all listeners.
        tickets: Those of the clients that may come.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        *,
        encryption: Encryption | None,
        observer: DoorObserver,
        hello_s: float = _HELLO_S,
    ) -> None:
        self._hello_s = hello_s
        self._listeners, self._encryption, self._observer = listeners, encryption, observer
        self.port = int(listeners[0].getsockname()[1])
        self.tickets: Tickets[LaneTicket] = Tickets()
        # In the order in which they came.
        self._strangers: dict[_Stranger, None] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="headrace-lane-door", daemon=True)

    def start(self) -> None:
        """Start to let clients in."""
        for one in self._listeners:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more."""
        if not self.tickets.close():
            return
        self._waker.send(b"\0")
        self._thread.join()
        for one in (*self._listeners, self._woken, self._waker):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        while not self.tickets.is_closed:
            for key, _ in self._selector.select(_LOOK_S):
                if key.data is not None:
                    self._hear(key.data)
                elif key.fileobj is not self._woken and isinstance(key.fileobj, socket.socket):
                    self._receive(key.fileobj)
            now = time.monotonic()
            for late in [each for each in self._strangers if now > each.since + self._hello_s]:
                self._drop(late, "late")
        for left in list(self._strangers):
            self._drop(left, "late")

    def _receive(self, listener: socket.socket) -> None:
        connection = accept(listener)
        if connection is None:
            return
        try:
            address = address_of(connection.getpeername()[0])
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._encryption is not None:
                connection = self._encryption.around(connection)
        except (OSError, ValueError):  # it is gone already
            connection.close()
            return
        if len(self._strangers) >= MOST_STRANGERS:
            self._make_room()
        is_greeted = self._encryption is None
        stranger = _Stranger(connection, address, time.monotonic(), is_greeted)
        self._strangers[stranger] = None
        self._selector.register(connection, selectors.EVENT_READ, stranger)
        self._hear(stranger)

    def _make_room(self) -> None:
        counts = Counter(each.address for each in self._strangers)
        most = max(counts.values())
        self._drop(
            next(each for each in self._strangers if counts[each.address] == most), "crowded"
        )

    def _hear(self, stranger: _Stranger) -> None:
        if stranger not in self._strangers:
            return
        connection, events = stranger.connection, selectors.EVENT_READ
        try:
            if not stranger.is_greeted and isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
                stranger.is_greeted = True
            while len(stranger.heard) < HELLO_BYTES:
                said = connection.recv(HELLO_BYTES - len(stranger.heard))
                if not said:
                    self._drop(stranger, "hello")
                    return
                stranger.heard += said
        except (BlockingIOError, ssl.SSLWantReadError):
            self._selector.modify(connection, events, stranger)
        except ssl.SSLWantWriteError:
            self._selector.modify(connection, selectors.EVENT_WRITE, stranger)
        except (OSError, ValueError):
            self._drop(stranger, "hello")
        else:
            self._judge(stranger)

    def _judge(self, stranger: _Stranger) -> None:
        """Pass a client on to its stream, or refuse it."""
        hello = read_hello(bytes(stranger.heard))
        if hello is None:
            self._drop(stranger, "hello")
            return
        ticket = self.tickets.take(hello.ticket)
        connection = stranger.connection
        certificate = None
        if isinstance(connection, ssl.SSLSocket):
            certificate = connection.getpeercert(binary_form=True)
        if ticket is None:
            self._refuse(stranger, "ticket")
        elif not ticket.is_for(hello, address=stranger.address, certificate=certificate or b""):
            ticket.give(None)
            self._refuse(stranger, "caller")
        else:
            try:
                connection.send(answer(is_let_in=True))
            except OSError:
                ticket.give(None)
                self._drop(stranger, "hello")
                return
            self._forget(stranger)
            ticket.give(connection)

    def _refuse(self, stranger: _Stranger, reason: str) -> None:
        with contextlib.suppress(OSError):
            stranger.connection.send(answer(is_let_in=False))
        self._drop(stranger, reason)

    def _drop(self, stranger: _Stranger, reason: str) -> None:
        self._forget(stranger)
        stranger.connection.close()
        self._observer.refused(reason)

    def _forget(self, stranger: _Stranger) -> None:
        self._selector.unregister(stranger.connection)
        del self._strangers[stranger]
