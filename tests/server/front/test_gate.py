"""Addresses that bring far too many calls cannot connect for a while, and nobody else is kept out.

Wrong would be: somebody else is kept out, or cut; somebody is kept out for ever; an address that
goes on is let in again and again; a filter that stays when the server has ended; a queue of gRPC
that is full before an address is known to fill it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attacks.http2 import RST_STREAM, call, connected, frame, header_block
from headrace.server.front.gate import LONGEST_S, REMEMBERED_S, WINDOW_S, Gate
from headrace.server.front.socket_filter import MOST_NETWORKS, Network, keep_out, network_of
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.served import TIMEOUT_S, stub_of
from support.waiting import until

_A, _B = "127.0.0.2", "127.0.0.3"
_SERVICE = "/headrace.v1.ShardService"
_CANCEL = struct.pack(">I", 8)


def _bring(gate: Gate, peer: str, count: int) -> bool:
    return [gate.may_call(peer) for _ in range(count)][-1]


def test_an_address_is_shut_out_when_it_brings_too_many_and_no_other_is() -> None:
    """Over all of its connections; calls of others go on, and so do those of a unix socket."""
    gate = Gate(most=10, now=lambda: 0.0)

    assert _bring(gate, "ipv4:10.0.0.1:1000", 5)
    assert _bring(gate, "ipv4:10.0.0.2:1000", 5)
    assert _bring(gate, "unix:", 100)
    assert not _bring(gate, "ipv4:10.0.0.1:1001", 6)
    assert gate.may_call("ipv4:10.0.0.2:1000")
    assert (network_of("10.0.0.1"),) == gate.networks_to_keep_out()


def test_calls_that_come_slowly_shut_nobody_out() -> None:
    """What one connection may bring in a window is never too many."""
    now = [0.0]
    gate = Gate(most=10, now=lambda: now[0])

    for _ in range(20):
        assert _bring(gate, "ipv4:10.0.0.1:1000", 10)
        now[0] += WINDOW_S + 0.1


def test_an_address_is_let_in_and_shut_out_for_longer_each_time() -> None:
    """Up to a bound; and one that has behaved for long enough begins as any other."""
    now = [0.0]
    gate = Gate(most=10, shut_s=10.0, now=lambda: now[0])
    terms = []
    for _ in range(7):
        _bring(gate, "ipv4:10.0.0.1:1000", 11)
        began = now[0]
        while gate.networks_to_keep_out():
            now[0] += 0.5
        terms.append(now[0] - began)

    assert [10.0, 20.0, 40.0, 80.0, 160.0, LONGEST_S, LONGEST_S] == terms
    now[0] += REMEMBERED_S + 1
    assert () == gate.networks_to_keep_out()
    _bring(gate, "ipv4:10.0.0.1:1000", 11)
    now[0] += 10.5
    assert () == gate.networks_to_keep_out()


def test_an_address_pauses_when_two_connections_bring_many_waiting_calls() -> None:
    """One connection alone does not pause it, nor does a herd with few on each; pauses end."""
    now = [0.0]
    gate = Gate(several=10, pause_s=1.0, now=lambda: now[0])

    def wait(peer: str, count: int) -> tuple[Network, ...]:
        for _ in range(count):
            gate.call_waits(peer)
        return gate.networks_to_keep_out()

    assert () == wait("ipv4:10.0.0.1:1000", 100)
    assert () == wait("ipv4:10.0.0.1:1001", 10)
    assert () == wait("ipv4:10.0.0.2:1001", 11)
    assert () == wait("unix:", 100)
    for port in range(100):
        assert () == wait(f"ipv4:10.0.0.3:{port}", 10)
    paused = (network_of("10.0.0.1"),)
    assert paused == wait("ipv4:10.0.0.1:1001", 1)
    assert gate.may_call("ipv4:10.0.0.1:1000")
    now[0] = 0.9
    assert paused == wait("ipv4:10.0.0.1:1001", 100)
    now[0] = 1.0
    assert () == gate.networks_to_keep_out()
    assert paused == wait("ipv4:10.0.0.1:1002", 11)
    now[0] = 2.0 + WINDOW_S
    assert () == wait("ipv4:10.0.0.1:1002", 11)


def test_a_network_of_ipv6_is_one_and_an_ipv4_address_in_it_is_itself() -> None:
    """One machine may have all of the 64 bits."""
    gate = Gate(most=10, now=lambda: 0.0)
    for number in range(11):
        gate.may_call(f"ipv6:%5B2001:db8::{number:x}%5D:1000")

    assert (network_of("2001:db8::ffff"),) == gate.networks_to_keep_out()
    assert not gate.may_call("ipv6:%5B2001:db8::77%5D:1")
    assert gate.may_call("ipv6:%5B2001:db8:0:1::1%5D:1")
    assert network_of("127.0.0.2") == network_of("::ffff:127.0.0.2")
    assert network_of("fe80::1") == network_of("fe80::2%eth0")


@pytest.fixture(params=["127.0.0.1", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A socket that listens, for IPv4 alone or for both."""
    host = request.param
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = {"dualstack_ipv6": True} if ":" in host else {}
    with socket.create_server((host, 0), family=family, **dual) as made:
        yield made


def _connects(listener: socket.socket, source: str) -> bool:
    target = ("::1" if ":" in source else "127.0.0.1", listener.getsockname()[1])
    try:
        # Nobody answers one that is kept out: it would try again after a second.
        with socket.create_connection(target, 0.3, (source, 0)):
            return True
    except TimeoutError:
        return False


def test_the_kernel_keeps_networks_out_and_lets_them_in_again(listener: socket.socket) -> None:
    """As many as there may be; connections that stand go on."""
    many = [network_of(f"10.0.{number}.1") for number in range(MOST_NETWORKS - 2)]
    place = ("127.0.0.1", listener.getsockname()[1])
    with socket.create_connection(place, 5.0, (_A, 0)) as before:
        there, _ = listener.accept()
        with there:
            keep_out(listener, [*many, network_of("2001:db8::1"), network_of(_A)])

            assert not _connects(listener, _A)
            assert _connects(listener, _B)
            before.sendall(b"on")
            assert b"on" == there.recv(2)
            keep_out(listener, [])
            assert _connects(listener, _A)


def test_the_kernel_keeps_networks_of_ipv6_out() -> None:
    """And nobody of IPv4 with them."""
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with both as listener:
        networks = [network_of(f"2001:db8:{number:x}::1") for number in range(MOST_NETWORKS - 1)]
        keep_out(listener, networks)
        assert _connects(listener, "::1")
        keep_out(listener, [*networks, network_of("::1")])

        assert not _connects(listener, "::1")
        assert _connects(listener, _A)


def test_who_resets_on_one_connection_after_another_cannot_connect(start: StartServer) -> None:
    """Another address goes on, and so does a connection of the same one that was there before."""
    running = start()
    host, _, port = running.server.address.rpartition(":")
    place = (host, int(port))
    block = header_block(f"{_SERVICE}/ListDatasets")
    request = pb.ListDatasetsRequest().SerializeToString()
    frames = b"".join(
        call(number, block, request) + frame(RST_STREAM, 0, number, _CANCEL)
        for number in range(1, 4096, 2)
    )
    check = health_pb2_grpc.HealthStub(running.channel).Check
    check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    with ExitStack() as stack:
        quiet = stack.enter_context(connected(place, source=_A))

        def is_shut_out() -> bool:
            # During a pause, the next one connects a second later.
            with suppress(OSError):
                loud = stack.enter_context(connected(place, source=_A))
                loud.sendall(frames)
            return bool(running.server._gate._terms)

        assert until(is_shut_out)
        assert until(lambda: running.server._gate._kept_out)

        with pytest.raises(TimeoutError):
            socket.create_connection(place, 0.3, (_A, 0))
        quiet.sendall(frame(6, 0, 0, b"are you?"))
        assert b"are you?" in _received(quiet, b"are you?")
        assert stub_of(running.channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S)
    running.server.stop()
    assert not running.server._gate._thread.is_alive()


def _received(connection: socket.socket, end: bytes) -> bytes:
    found, by = b"", time.monotonic() + TIMEOUT_S
    while end not in found and time.monotonic() < by:
        found += connection.recv(1 << 16)
    return found
