"""A ticket's connection: of the stream, or closed, whoever is first."""

from __future__ import annotations

import socket

import pytest

from headrace.server.stream.tickets import Ticket


@pytest.mark.parametrize("is_late", [False, True], ids=["before the end", "after it"])
def test_a_connection_that_nobody_takes_is_closed(*, is_late: bool) -> None:
    """The call may end between a door's look at the ticket and the client's way in."""
    ticket = Ticket()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ticket.give(None)
        assert ticket.wait() is None
        if not is_late:
            ticket.give(ours)
        ticket.discard()
        if is_late:
            ticket.give(ours)

        theirs.settimeout(10)
        assert b"" == theirs.recv(1)
        assert -1 == ours.fileno()


def test_a_connection_is_its_streams() -> None:
    """Discarding the ticket leaves it open."""
    ticket = Ticket()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ticket.give(ours)
        assert ours is ticket.wait()
        ticket.discard()
        theirs.sendall(b"x")
        assert b"x" == ours.recv(1)
