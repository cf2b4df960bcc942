"""The proxy that misbehaves on demand, between real sockets."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.errors import ConfigurationError
from headrace.loadtest import Cut, FaultyProxy

_WAIT_S = 60.0


@contextlib.contextmanager
def _echo_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_WAIT_S)
        thread = threading.Thread(target=_echo_all, args=(listener,))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(_WAIT_S)


def _echo_all(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_echo, args=(connection,), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while part := connection.recv(1 << 16):
            connection.sendall(part)


@contextlib.contextmanager
def _through() -> Iterator[tuple[FaultyProxy, socket.socket]]:
    with _echo_server() as address, FaultyProxy(address) as proxy:
        host, _, port = proxy.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=_WAIT_S) as client:
            yield proxy, client


def _receive(client: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = client.recv(count - len(parts))
        assert part, "the connection ended early"
        parts += part
    return bytes(parts)


def test_bytes_pass_in_order() -> None:
    """Without a cut the proxy changes nothing, and passes the end of the stream on."""
    sent = bytes(range(256)) * 4096
    with _through() as (_, client):
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        received = _receive(client, len(sent))
        sender.join(_WAIT_S)
        client.shutdown(socket.SHUT_WR)
        rest = client.recv(1)

    assert sent == received
    assert b"" == rest


def test_latency_delays_both_ways() -> None:
    """A round trip takes twice the latency at least."""
    with _through() as (proxy, client):
        proxy.apply(Cut("latency", 0.05))
        start = time.monotonic()
        client.sendall(b"x")
        _receive(client, 1)
        took_s = time.monotonic() - start

    assert took_s >= 0.1


def test_bandwidth_paces() -> None:
    """Half a MiB at 1 MiB/s takes half a second at least."""
    with _through() as (proxy, client):
        proxy.apply(Cut("bandwidth", 1 << 20))
        start = time.monotonic()
        client.sendall(bytes(1 << 19))
        _receive(client, 1 << 19)
        took_s = time.monotonic() - start

    assert took_s >= 0.45


def test_a_black_hole_gives_everything_back() -> None:
    """While it lasts nothing comes; afterwards every byte does."""
    with _through() as (proxy, client):
        proxy.apply(Cut("blackhole", seconds=1))
        client.sendall(b"late")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.apply(None)
        client.settimeout(_WAIT_S)

        assert b"late" == _receive(client, 4)


def test_a_reset_ends_connections_and_not_the_proxy() -> None:
    """The open connection breaks at once; a new one works."""
    with _through() as (proxy, client):
        client.sendall(b"x")
        _receive(client, 1)
        proxy.apply(Cut("reset"))
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        host, _, port = proxy.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=_WAIT_S) as again:
            again.sendall(b"y")

            assert b"y" == _receive(again, 1)


@pytest.mark.parametrize("target", ["dns:///server:1", "unix:/run/x", "server", "[::1]:5"])
def test_only_plain_addresses_can_be_cut_off(target: str) -> None:
    """Other targets are refused with what is wanted."""
    with pytest.raises(ConfigurationError, match="expected HOST:PORT"):
        FaultyProxy(target)


_WITHOUT_DESCRIPTORS = """
import resource, threading
from headrace.loadtest import FaultyProxy

FaultyProxy("127.0.0.1:1").close()  # so that everything is imported
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
held = open("/dev/null")
failed = []
# It needs four: three for the loop, and one to listen.
for free in range(4):
    resource.setrlimit(resource.RLIMIT_NOFILE, (held.fileno() + 1 + free, most))
    try:
        FaultyProxy("127.0.0.1:1")
    except OSError as error:
        failed.append(error.strerror)
print(failed, threading.active_count(), flush=True)
"""


def test_a_proxy_that_cannot_listen_leaves_no_thread() -> None:
    """The process ends with the error, instead of waiting for the proxy's thread for ever."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DESCRIPTORS],
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
        check=False,
    )

    assert f"{['Too many open files'] * 4} 1\n" == done.stdout, done.stderr
    assert 0 == done.returncode
