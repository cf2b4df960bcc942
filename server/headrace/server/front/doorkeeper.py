"""Drop idle connections when a server has nearly as many as it allows.

gRPC drops connections without a handshake after seconds, and those without calls after a minute;
until then they would keep others out.

Contract:

1. While more than `_FULL` of the connections are taken, those that have no call for `_IDLE_S` are
   dropped, the longest idle first, until no more than `_ROOM` are taken. Anything else that they
   send, such as pings, does not count.
2. A connection with a call is never dropped.
3. While more than `_LITTLE_ROOM` of the connections are taken, a network that has `_LARGE` of them
   without a call is paused, because it fills them faster than this can look. That also delays its
   honest clients, so slower ones are not paused.
4. This covers only TCP connections, and only on Linux, which has a list of them.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from headrace.server.front.connections import clients_at, tcp_ports
from headrace.server.front.descriptors import open_files
from headrace.server.front.socket_filter import network_of

_LOOK_S = 0.25
_IDLE_S = 1.0
_FULL = 0.75
_ROOM = 0.5
_LITTLE_ROOM = 0.9
_LARGE = 0.25


class Doorkeeper:
    """Watches the connections of one server; thread-safe.

    Args:
        most: The most connections to allow.
        pause: Refuses new connections of the network of a host for a moment.
    """

    def __init__(self, most: int, pause: Callable[[str], None] = lambda _host: None) -> None:
        self._most = most
        self._pause = pause
        self._ports: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        # Only by the client's port; a client with the same port on another machine is spared too.
        self._calls: Counter[int] = Counter()
        # Those that had a call since the last look at all connections, and since when others had
        # none.
        self._called: set[int] = set()
        self._idle_since: dict[tuple[str, int], float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="headrace-door", daemon=True)

    def start(self, addresses: Iterable[str]) -> None:
        """Start to watch the connections to certain addresses."""
        self._ports = tcp_ports(addresses)
        if self._ports and sys.platform == "linux":
            self._thread.start()

    def call_began(self, peer: str) -> None:
        """Count a call of a client, in gRPC's notation; `call_ended` must follow."""
        port = _port(peer)
        with self._lock:
            self._calls[port] += 1
            self._called.add(port)

    def call_ended(self, peer: str) -> None:
        """Count the end of a call."""
        port = _port(peer)
        with self._lock:
            self._calls[port] -= 1
            if not self._calls[port]:
                del self._calls[port]

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            # With no descriptor free to look with, the next look may find one.
            with suppress(OSError):
                # Earlier than room is made, so that it is known then how long each has been idle.
                if open_files() > _ROOM * self._most:
                    self._make_room()
                else:
                    self._idle_since = {}

    def _make_room(self) -> None:
        found = [(host, port) for _, host, port in clients_at(self._ports)]
        before, now = self._idle_since, time.monotonic()
        with self._lock:
            had_call, self._called = self._called | self._calls.keys(), set()
        self._idle_since = {one: before.get(one, now) for one in found if one[1] not in had_call}
        if len(found) <= _FULL * self._most:
            return
        if len(found) > _LITTLE_ROOM * self._most:
            self._pause_large()
        idle = [one for one, since in self._idle_since.items() if now - since >= _IDLE_S]
        longest = sorted(idle, key=self._idle_since.__getitem__)
        dropped = set(longest[: len(found) - int(_ROOM * self._most)])
        for connection, host, port in clients_at(self._ports):
            if (host, port) in dropped:
                self._drop(connection, port)

    def _pause_large(self) -> None:
        """Pause networks with many connections that have no call."""
        counts = Counter(network_of(host) for host, _ in self._idle_since)
        for network, count in counts.items():
            if count > _LARGE * self._most:
                self._pause(str(network.network_address))

    def _drop(self, connection: socket.socket, port: int) -> None:
        """Drop a connection, unless it had a call meanwhile."""
        with self._lock:
            if port not in self._calls and port not in self._called:
                # gRPC has another descriptor of the socket, and sees it closed.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def _port(peer: str) -> int:
    """Return the port of a client; 0 for a client of a unix socket."""
    text = peer.rpartition(":")[2]
    return int(text) if text.isdecimal() else 0
