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
from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

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

    def give(self, connection: socket.socket | None) -> None:
        """Pass the client's connection on; None ends the wait."""
        self._given.put(connection)

    def wait(self) -> socket.socket | None:
        """Return the client's connection, or None if it did not arrive."""
        with contextlib.suppress(queue.Empty):
            return self._given.get(timeout=WAIT_S)
        return None

    def discard(self) -> None:
        """Disconnect a client that came too late, or twice."""
        with contextlib.suppress(queue.Empty):
            while True:
                late = self._given.get_nowait()
                if late is not None:
                    late.close()


_Ticket_contra = TypeVar("_Ticket_contra", bound=Ticket, contravariant=True)


class Door(Protocol[_Ticket_contra]):
    """Lets clients with tickets in."""

    def admit(self, ticket: _Ticket_contra, /) -> None:
        """Accept a client with this ticket; `forget` must follow.

        Raises:
            NoTransportError: No more clients are let in.
        """

    def forget(self, ticket: _Ticket_contra, /) -> None:
        """Invalidate a ticket."""


_Any = TypeVar("_Any", bound=Ticket)


def met(
    ticket: _Any, offer: Message, doors: Sequence[Door[_Any]], call: AttachingCall
) -> Generator[Message, None, socket.socket | None]:
    """Offer a ticket, and wait for the client that brings it; return its connection, or None.

    Args:
        ticket: The ticket.
        offer: What tells the client of it.
        doors: Where the client may come in.
        call: Its call; when it has ended, nobody is waited for.

    Raises:
        NoTransportError: The doors are closed.
    """
    try:
        for door in doors:
            door.admit(ticket)
        if not call.on_end(lambda: ticket.give(None)):
            ticket.give(None)
        yield offer
        return ticket.wait()
    finally:
        for door in doors:
            door.forget(ticket)
        ticket.discard()
