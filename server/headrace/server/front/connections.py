"""Find the sockets of this process through the kernel, because gRPC does not expose its own.

Each is yielded as a duplicate descriptor, which is closed again before the next one: with as many
duplicates as connections, no descriptor would be left for the store. Duplicates of listening
sockets must not be kept either: the port would stay open after gRPC has closed its own.

All raise `OSError` if no descriptor is free to look with.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


def tcp_ports(addresses: Iterable[str]) -> frozenset[int]:
    """Return the ports of the addresses that are not unix sockets."""
    ports = (one.rpartition(":")[2] for one in addresses if not one.startswith("unix:"))
    return frozenset(map(int, ports))


def clients_at(ports: frozenset[int]) -> Iterator[tuple[socket.socket, str, int]]:
    """Yield each connection to certain ports, with the host and the port of its client."""
    for one in _tcp_sockets(ports):
        with one:
            try:
                host, port = one.getpeername()[:2]
            except OSError:
                continue
            yield one, str(host), int(port)


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
        except OSError as error:
            if error.errno in _NONE_LEFT:
                raise
            continue  # it was closed meanwhile
        if _is_at(one, ports):
            yield one
        else:
            one.close()


def _is_at(one: socket.socket, ports: frozenset[int]) -> bool:
    with suppress(OSError):
        is_tcp = one.family in {socket.AF_INET, socket.AF_INET6}
        return is_tcp and one.getsockname()[1] in ports
    return False
