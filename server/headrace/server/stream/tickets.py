"""Tickets: how the client of a stream proves, on another connection, that it is the stream's.

Contract:

1. A ticket has 128 random bits, is valid once, and for `WAIT_S` at most.
2. The stream waits until its client is there, the time is over, or the call has ended.
3. A connection that comes too late is closed.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import threading
from collections.abc import Generator, Sequence
from typing import Generic, TypeVar

from google.protobuf.message import Message

from headrace.errors import NoTransportError
from headrace.server.stream.transport_plugs import AttachingCall

TICKET_BYTES = 16
WAIT_S = 10.0


class Ticket:
    """A stream's wait for its client.

    Attributes:
        secret: The ticket that the client must send.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(TICKET_BYTES)
        self._given: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_over = False

    def give(self, connection: socket.socket | None) -> None:
        """Pass the client's connection on, or close it if it comes too late; None ends the wait."""
        with self._lock:
            if not self._is_over:
                self._given.put(connection)
            elif connection is not None:
                connection.close()

    def wait(self) -> socket.socket | None:
        """Return the client's connection, or None if it did not arrive."""
        with contextlib.suppress(queue.Empty):
            return self._given.get(timeout=WAIT_S)
        return None

    def discard(self) -> None:
        """Disconnect a client that came too late, or twice, and any that still comes."""
        with self._lock, contextlib.suppress(queue.Empty):
            self._is_over = True
            while True:
                late = self._given.get_nowait()
                if late is not None:
                    late.close()


_Ticket = TypeVar("_Ticket", bound=Ticket)


class Tickets(Generic[_Ticket]):
    """The tickets that are valid at one listener; for several threads.

    Attributes:
        is_closed: Whether no more clients are let in.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, _Ticket] = {}
        self.is_closed = False

    def admit(self, ticket: _Ticket) -> None:
        """Accept a client with this ticket; `forget` must follow.

        Raises:
            NoTransportError: No more clients are let in.
        """
        with self._lock:
            if self.is_closed:
                raise NoTransportError("this server is shutting down")
            self._waiting[ticket.secret] = ticket

    def forget(self, ticket: _Ticket) -> None:
        """Invalidate a ticket."""
        self.take(ticket.secret)

    def take(self, secret: bytes) -> _Ticket | None:
        """Invalidate the ticket that a client has sent; return it, or None if there is none."""
        with self._lock:
            return self._waiting.pop(secret, None)

    def close(self) -> bool:
        """End all waits for clients; return whether this call is the first."""
        with self._lock:
            is_first, self.is_closed = not self.is_closed, True
            for ticket in self._waiting.values():
                ticket.give(None)
        return is_first


def met(
    ticket: _Ticket, offer: Message, listeners: Sequence[Tickets[_Ticket]], call: AttachingCall
) -> Generator[Message, None, socket.socket | None]:
    """Offer a ticket, and wait for the client that brings it; return its connection, or None.

    Args:
        ticket: The ticket.
        offer: What tells the client of it.
        listeners: Where the client may come.
        call: Its call; when it has ended, nobody is waited for.

    Raises:
        NoTransportError: A listener is closed.
    """
    try:
        for tickets in listeners:
            tickets.admit(ticket)
        if not call.on_end(lambda: ticket.give(None)):
            ticket.give(None)
        yield offer
        return ticket.wait()
    finally:
        for tickets in listeners:
            tickets.forget(ticket)
        ticket.discard()
