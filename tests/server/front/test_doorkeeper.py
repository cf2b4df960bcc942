"""Idle connections make room, also for a process that has few descriptors left.

Wrong would be: idle connections that stay because each needs another descriptor to be looked at; a
thread that ends at a moment without descriptors; a connection with a call that is dropped.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headrace.server.front.doorkeeper import Doorkeeper
from headrace.server.front.gate import Gate
from headrace.server.front.socket_filter import network_of
from support.no_descriptors import no_descriptors
from support.waiting import until

_MOST = 40
# Several looks; a test that waits for less proves less, but passes.
_LOOKS_S = 1.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that listens."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as made:
        yield made


@pytest.fixture
def clients(listener: socket.socket) -> Iterator[list[socket.socket]]:
    """As many accepted connections as there may be; these are their other ends."""
    with ExitStack() as stack:
        made = []
        for _ in range(_MOST):
            one = stack.enter_context(socket.create_connection(listener.getsockname(), 30.0))
            stack.enter_context(listener.accept()[0])
            one.setblocking(False)
            made.append(one)
        yield made


def _is_open(client: socket.socket) -> bool:
    try:
        return bool(client.recv(1))
    except BlockingIOError:
        return True


def _address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_idle_connections_make_room_with_few_descriptors_left(
    listener: socket.socket, clients: list[socket.socket]
) -> None:
    """Half of them go, those with a call stay, and the rest of the process can open something."""
    door = Doorkeeper(_MOST)
    busy = clients[:3]
    for client in busy:
        door.call_began(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
    with no_descriptors(but=8):
        door.start([_address(listener)])
        is_done = until(lambda: sum(map(_is_open, clients)) <= _MOST // 2)
    door.close()

    assert is_done
    assert all(map(_is_open, busy))
    assert _MOST // 2 == sum(map(_is_open, clients))


def test_a_network_that_fills_the_server_is_paused(
    listener: socket.socket, clients: list[socket.socket]
) -> None:
    """Otherwise it would connect again at once, before others can."""
    paused: set[str] = set()
    door = Doorkeeper(_MOST, paused.add)
    for client in clients:
        door.call_began(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
    door.start([_address(listener)])
    threading.Event().wait(_LOOKS_S)
    assert not paused, "those with calls are no flood"
    for client in clients:
        door.call_ended(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
    assert until(lambda: paused == {"127.0.0.1"})
    door.close()


def test_a_paused_network_is_kept_out_for_a_moment() -> None:
    """Also one of IPv6, of which a host may have many addresses."""
    now = [0.0]
    gate = Gate(pause_s=1.0, now=lambda: now[0])

    gate.pause("127.0.0.2")
    gate.pause("2001:db8::1")
    assert {network_of("127.0.0.2"), network_of("2001:db8::2")} == set(gate.networks_to_keep_out())
    now[0] = 1.1
    assert not gate.networks_to_keep_out()


def test_a_moment_without_descriptors_does_not_end_the_doorkeeper(
    listener: socket.socket, clients: list[socket.socket]
) -> None:
    """It looks again afterwards."""
    door = Doorkeeper(_MOST)
    with no_descriptors():
        door.start([_address(listener)])
        threading.Event().wait(_LOOKS_S)
    is_done = until(lambda: sum(map(_is_open, clients)) <= _MOST // 2)
    door.close()

    assert is_done


def test_a_moment_without_descriptors_shuts_nobody_out_for_ever(listener: socket.socket) -> None:
    """An address whose term ends in such a moment is let in after it."""
    gate = Gate(most=10, shut_s=1.0)
    gate.start([_address(listener)])
    for _ in range(11):
        gate.may_call("ipv4:127.0.0.2:1000")
    assert until(lambda: gate._kept_out == (network_of("127.0.0.2"),))
    with no_descriptors():
        assert until(lambda: not gate.networks_to_keep_out())
        threading.Event().wait(_LOOKS_S)

    assert until(lambda: not gate._kept_out)
    with socket.create_connection(listener.getsockname(), 30.0, ("127.0.0.2", 0)):
        listener.accept()[0].close()
    gate.close()
