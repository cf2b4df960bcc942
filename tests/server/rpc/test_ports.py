"""A name that stands for several addresses: a server has its port at all of them, or at none."""

from __future__ import annotations

import socket

import pytest

from headrace.errors import ConfigurationError
from headrace.server import ServerConfig, start_server
from headrace.server.rpc.listen import reserve
from headrace.server.rpc.ports import free_places
from headrace.server.workers.supervisor import start_supervisor
from support.running import server_of

_BOTH = [socket.AF_INET, socket.AF_INET6]


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="localhost has one address here")


@needs_ipv6
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("family", _BOTH)
def test_a_port_in_use_at_one_address_is_refused(
    rich_url: str, family: socket.AddressFamily, workers: int
) -> None:
    """Otherwise clients that take the other address would reach another server."""
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as other:
        config = ServerConfig(
            datasets={"rich": rich_url},
            listen=f"localhost:{other.getsockname()[1]}",
            workers=workers,
        )
        with pytest.raises(ConfigurationError, match=r"cannot listen on localhost:\d+: it is"):
            (start_supervisor if workers else start_server)(config)


@needs_ipv6
def test_a_picked_port_is_answered_at_every_address(rich_url: str) -> None:
    """Port 0 of localhost is one port of both addresses."""
    with server_of({"rich": rich_url}, listen="localhost:0") as server:
        port = int(server.address.rpartition(":")[2])
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=10).close()


@needs_ipv6
def test_a_reserved_port_is_held_at_every_address() -> None:
    """Nobody else gets it at the second address, until it is released."""
    reservation = reserve("localhost:0")
    port = int(reservation.address.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        free_places("::1", port)
    with pytest.raises(OSError, match="in use"):
        free_places("127.0.0.1", port)
    reservation.close()

    assert _BOTH == [family for family, _ in free_places("localhost", port)]


def test_a_single_address_is_found_with_its_port() -> None:
    """An address stands for itself."""
    ((family, (host, port)),) = free_places("127.0.0.1", 0)

    assert (socket.AF_INET, "127.0.0.1") == (family, host)
    assert [(family, (host, port))] == free_places("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_of_another_machine_is_refused(host: str) -> None:
    """There is nothing to listen on."""
    with pytest.raises(OSError, match=r".+"):
        free_places(host, 0)
