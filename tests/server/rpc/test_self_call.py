"""A server that does not work with the installed grpcio says so, instead of being ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from headrace.errors import ConfigurationError
from headrace.server.front import wire
from headrace.server.front.health import Health
from headrace.server.front.reflection import SERVICE as REFLECTION
from headrace.server.front.wire_server import WireServer
from server.conftest import StartServer
from support.envoy import free_port
from support.waiting import until


def test_the_parts_are_those_that_are_used() -> None:
    """All ten, and each is there in this version."""
    assert 10 == len(wire.PARTS)
    wire.check_parts()


@pytest.mark.parametrize("name", wire.PARTS)
def test_a_part_that_is_missing_is_named(
    start: StartServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before anything listens."""
    monkeypatch.delattr(cygrpc, name)

    with pytest.raises(ConfigurationError, match=f"lacks {name}; install"):
        start()


def test_a_server_whose_streams_stop_is_not_ready(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question whose answer comes and whose second one does not is noticed."""

    def once(call: Any) -> None:
        call.answer(None)

    monkeypatch.setattr("headrace.server.front.calls.Call.receive_another", once)

    with pytest.raises(ConfigurationError, match="a call of its own failed"):
        start()


def test_a_server_that_fails_its_calls_is_not_ready(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what was tried."""

    def broken(self: Health, call: Any, request: bytes) -> None:
        raise ZeroDivisionError(self, call, request)

    monkeypatch.setattr(Health, "received", broken)

    with pytest.raises(ConfigurationError, match=r"grpcio .* a call of its own failed"):
        start()


def test_clients_that_are_there_at_once_do_not_fail_a_start(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that lasts, of a trainer that waited for its server, is no sign of another grpcio."""
    address, over = f"127.0.0.1:{free_port()}", threading.Event()
    came: list[object] = []

    def endless() -> Iterator[bytes]:
        over.wait()
        yield b""

    def wait_for_client(server: WireServer) -> None:
        start_server(server)
        # The server is bound: whoever calls now is there before its own calls are over.
        channel = grpc.insecure_channel(address)
        ask: Any = channel.stream_stream(f"/{REFLECTION}/ServerReflectionInfo", None, None)
        came.extend((channel, ask(endless(), timeout=60)))
        assert until(lambda: server._calls, timeout_s=20)

    start_server = WireServer.start
    monkeypatch.setattr(WireServer, "start", wait_for_client)
    began = time.monotonic()
    try:
        start(listen=address)
        took = time.monotonic() - began
    finally:
        over.set()

    assert came
    assert took < 8, "it waited for a call that lasts until its request is missed"
