"""Find the sockets of this process through the kernel, because gRPC does not expose its own.

Each is yielded as a duplicate descriptor, which the caller closes. Duplicates of listening sockets
must not be kept: the port would stay open after gRPC has closed its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def tcp_ports(addresses: Iterable[str]) -> frozenset[int]:
    """Return the ports of the addresses that are not unix sockets."""
    ports = (one.rpartition(":")[2] for one in addresses if not one.startswith("unix:"))
    return frozenset(map(int, ports))


@contextmanager
def clients_at(ports: frozenset[int]) -> Iterator[list[tuple[socket.socket, str, int]]]:
    """Yield the connections to certain ports, with the host and the port of each client."""
    found: list[tuple[socket.socket, str, int]] = []
    try:
        for one in _tcp_sockets(ports):
            try:
                host, port = one.getpeername()[:2]
            except OSError:
                one.close()
            else:
                found.append((one, str(host), int(port)))
        yield found
    finally:
        for one, _, _ in found:
            one.close()


@contextmanager
def listeners_at(ports: frozenset[int]) -> Iterator[list[socket.socket]]:
    """Yield the sockets that listen on certain ports."""
    found: list[socket.socket] = []
    try:
        for one in _tcp_sockets(ports):
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(one)
            else:
                one.close()
        yield found
    finally:
        for one in found:
            one.close()


def _tcp_sockets(ports: frozenset[int]) -> Iterator[socket.socket]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            one = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue
        if _is_at(one, ports):
            yield one
        else:
            one.close()


def _is_at(one: socket.socket, ports: frozenset[int]) -> bool:
    with suppress(OSError):
        is_tcp = one.family in {socket.AF_INET, socket.AF_INET6}
        return is_tcp and one.getsockname()[1] in ports
    return False
