"""Shut out addresses that open calls only to reset them, on one connection after another.

The calls of one connection are limited, but the next connection brings as many again, and each call
costs a look at its headers before anything can refuse it. So the kernel refuses new connections of
such an address (`headrace.server.front.socket_filter`).

Contract:

1. `call_waits` counts each call whose caller has many calls waiting. If two connections of an
   address bring more than ``several`` such calls each within `WINDOW_S`, it cannot connect for
   ``pause_s``, and again for each further such connection. Nothing is cut, and an honest client
   connects a second later; but gRPC's queue might be full before the next rule applies.
2. `may_call` counts each call whose caller has very many calls waiting, or resets very many
   (`Floods`). An address with more than ``most`` such calls within `WINDOW_S` is shut out for
   ``shut_s``: it cannot connect, and these calls are cut.
3. Meanwhile, its connections with more than ``few`` such calls within `WINDOW_S` are cut. Its other
   connections continue, and so do calls on them while few wait.
4. An address that is shut out again within `REMEMBERED_S` after the end of its term is shut out
   for twice as long as before, at most `LONGEST_S`.
5. All IPv6 addresses of a 64-bit network count as one, because one machine may use them all. At
   most `MOST_NETWORKS` are refused connections: those that were shut out last.
6. `pause` refuses new connections of a network for ``pause_s``, for other reasons than its calls.
7. Clients of unix sockets are never shut out. If the kernel accepts no filter, the log says so
   once, and the other rules still apply.
8. `close` lets all addresses in, and ends the thread.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

from headrace.server.front.connections import clients_at, listeners_at, tcp_ports
from headrace.server.front.socket_filter import MOST_NETWORKS, Network, keep_out, network_of

WINDOW_S = 4.0

MOST = 6144
"""1.5 times what one connection can bring in `WINDOW_S`: 2,048 calls, and 512 a second."""

SEVERAL = 64
"""Calls that no connection of a trainer has waiting, nor two of a herd (arbitrary)."""

FEW = 512
"""The number of calls that `Floods` lets a caller reset."""

PAUSE_S, SHUT_S, LONGEST_S = 1.0, 10.0, 160.0
"""A client whose first packet was dropped tries again after a second; the others, the first and
the longest term, are arbitrary."""

REMEMBERED_S = 600.0

_LOOK_S, _IDLE_S = 0.25, 60.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Term:
    """The last term for which a network was shut out.

    Attributes:
        seconds: The length of the term.
        until: When the term ends.
    """

    seconds: float
    until: float


@dataclass(slots=True)
class _Window:
    """The calls that were counted in one stretch of `WINDOW_S`.

    Attributes:
        began: When it began.
        of_network: Calls of callers with too many, by network.
        of_peer: The same, by connection.
        waiting_of_peer: Calls of callers with many waiting calls, by connection.
        busy_peers: Connections with more of those than they may have, by network.
    """

    began: float
    of_network: Counter[Network] = field(default_factory=Counter)
    of_peer: Counter[str] = field(default_factory=Counter)
    waiting_of_peer: Counter[str] = field(default_factory=Counter)
    busy_peers: Counter[Network] = field(default_factory=Counter)


class Gate:
    """The gate of one server; thread-safe.

    Args:
        most: The most calls of an address.
        few: The most calls of one connection of an address that is shut out.
        several: The most calls of all but one connection of an address that has no pause.
        pause_s: The length of a pause, in seconds.
        shut_s: The first term of an address, in seconds.
        now: Returns monotonic seconds.
    """

    def __init__(
        self,
        *,
        most: int = MOST,
        few: int = FEW,
        several: int = SEVERAL,
        pause_s: float = PAUSE_S,
        shut_s: float = SHUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._few = few
        self._several = several
        self._pause_s = pause_s
        self._shut_s = shut_s
        self._now = now
        self._ports: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._window = _Window(now())
        self._paused_until: dict[Network, float] = {}
        self._terms: dict[Network, _Term] = {}
        self._kept_out: tuple[Network, ...] = ()
        self._wake = threading.Event()
        self._is_over = self._is_useless = False
        self._thread = threading.Thread(target=self._guard, name="headrace-gate", daemon=True)

    def start(self, addresses: Iterable[str]) -> None:
        """Start to guard the listening addresses."""
        self._ports = tcp_ports(addresses)
        if self._ports and sys.platform == "linux":
            self._thread.start()

    def call_waits(self, peer: str) -> None:
        """Count a call of a caller with many waiting calls.

        Args:
            peer: The client, in gRPC's notation.
        """
        network, now = _network(peer.rpartition(":")[0]), self._now()
        if network is None:
            return
        with self._lock:
            window = self._current_window(now)
            window.waiting_of_peer[peer] += 1
            if window.waiting_of_peer[peer] != self._several + 1:
                return
            window.busy_peers[network] += 1
            if window.busy_peers[network] == 1:
                return
            self._paused_until[network] = now + self._pause_s
        self._wake.set()

    def pause(self, host: str) -> None:
        """Refuse new connections of a host's network for `pause_s`.

        Args:
            host: An IP address.
        """
        with self._lock:
            self._paused_until[network_of(host)] = self._now() + self._pause_s
        self._wake.set()

    def may_call(self, peer: str) -> bool:
        """Count a call of a caller with too many calls; return whether its address may call.

        Args:
            peer: The client, in gRPC's notation.
        """
        network, now = _network(peer.rpartition(":")[0]), self._now()
        if network is None:
            return True
        with self._lock:
            window = self._current_window(now)
            window.of_peer[peer] += 1
            window.of_network[network] += 1
            if self._is_out(network, now):
                return False
            if window.of_network[network] <= self._most:
                return True
            self._shut(network, now)
        self._wake.set()
        return False

    def networks_to_keep_out(self) -> tuple[Network, ...]:
        """Return the networks that must not connect now."""
        now = self._now()
        with self._lock:
            for network, term in list(self._terms.items()):
                if term.until + REMEMBERED_S < now:
                    del self._terms[network]
            for network, until in list(self._paused_until.items()):
                if until <= now:
                    del self._paused_until[network]
            # New terms and pauses are added at the end; terms are more important.
            out = [one for one in self._terms if self._is_out(one, now)]
            paused = [one for one in self._paused_until if one not in out]
            return tuple(paused + out)[-MOST_NETWORKS:]

    def close(self) -> None:
        """Let all addresses in, and end the thread."""
        self._is_over = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _is_out(self, network: Network, now: float) -> bool:
        return network in self._terms and self._terms[network].until > now

    def _current_window(self, now: float) -> _Window:
        if now - self._window.began > WINDOW_S:
            self._window = _Window(now)
        return self._window

    def _shut(self, network: Network, now: float) -> None:
        before = self._terms.pop(network, None)
        seconds = min(2 * before.seconds, LONGEST_S) if before else self._shut_s
        self._terms[network] = _Term(seconds, now + seconds)
        _log.warning(
            "%s made more than %d calls in %g s, all at once or only to reset them; it cannot "
            "connect for %g s",
            network,
            self._most,
            WINDOW_S,
            seconds,
        )

    def _guard(self) -> None:
        is_late = False
        while not self._is_over:
            self._wake.wait(_LOOK_S if self._kept_out or is_late else _IDLE_S)
            self._wake.clear()
            try:
                self._look()
                is_late = False
            except OSError as error:
                # No descriptor is free to look with.
                if not is_late:
                    _log.warning("addresses cannot be kept out or let in for now: %s", error)
                is_late = True
        if self._kept_out:
            with suppress(OSError):
                self._keep_out(())

    def _look(self) -> None:
        networks = self.networks_to_keep_out()
        if networks != self._kept_out:
            self._keep_out(networks)
        if networks:
            self._cut()

    def _keep_out(self, networks: tuple[Network, ...]) -> None:
        with listeners_at(self._ports) as listeners:
            for one in listeners:
                try:
                    keep_out(one, networks)
                except OSError as error:
                    if not self._is_useless:
                        self._is_useless = True
                        _log.warning("the kernel cannot keep addresses out: %s", error)
        self._kept_out = networks

    def _cut(self) -> None:
        """Cut connections with too many calls of networks that are shut out."""
        now = self._now()
        with self._lock:
            many = {
                (network, int(peer.rpartition(":")[2]))
                for peer, count in self._window.of_peer.items()
                if count > self._few
                and (network := _network(peer.rpartition(":")[0]))
                and self._is_out(network, now)
            }
        if not many:
            return
        for connection, host, port in clients_at(self._ports):
            if (network_of(host), port) in many:
                # gRPC has another descriptor of the socket, and sees it closed.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


@lru_cache(maxsize=1024)
def _network(host: str) -> Network | None:
    """Return the network of a client in gRPC's notation; None for a client of a unix socket."""
    kind, _, address = host.partition(":")
    return network_of(unquote(address).strip("[]")) if kind in {"ipv4", "ipv6"} else None
