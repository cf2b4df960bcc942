"""A server that does not work with the installed grpcio says so, instead of being ready."""

from __future__ import annotations

from typing import Any

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from headrace.errors import ConfigurationError
from headrace.server.front import wire
from headrace.server.front.health import Health
from server.conftest import StartServer


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
