"""Shut an address out that brings calls only to reset them, on one connection after another.

What one connection may bring is bounded, but the next one brings as much again, and each call costs
a look at its headers before anything can refuse it. So the kernel keeps new connections of such an
address from coming (`headrace.server.front.socket_filter`).

Contract:

1. `came` is told of each call whose caller has very many waiting, or resets very many (`Floods`).
   An address that brings more than ``most`` of them within `WINDOW_S` is shut out for ``shut_s``:
   it cannot connect, and those of its calls are cut.
2. Meanwhile, connections of it that bring more than ``few`` of them within `WINDOW_S` are cut. Its
   others go on, and so do its calls on them while few wait.
3. An address that is shut out again within `REMEMBERED_S` of its end is so for twice as long as
   before, `LONGEST_S` at most.
4. In IPv6 all addresses of a network of 64 bits are one, since one machine may use them all. No
   more than `MOST_NETWORKS` are kept from connecting, those that were shut out last.
5. Clients of unix sockets are never shut out. Where the kernel takes no filter the log says so
   once, and the rest holds.
6. `close` lets all in, and ends the thread.

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
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from headrace.server.front.connections import clients_at, listeners_at, tcp_ports
from headrace.server.front.socket_filter import MOST_NETWORKS, Network, keep_out, network_of

WINDOW_S = 4.0

MOST = 6144
"""Half as many again as one connection can bring in `WINDOW_S`: 2,048 calls, and 512 a second."""

FEW = 512
"""As many as `Floods` lets a caller reset."""

SHUT_S, LONGEST_S = 10.0, 160.0
"""At first and at most (arbitrary)."""

REMEMBERED_S = 600.0

_LOOK_S, _IDLE_S = 0.25, 60.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Term:
    """When a network was shut out last.

    Attributes:
        seconds: For how long.
        until: When it is let in.
    """

    seconds: float
    until: float


class Gate:
    """That of one server; safe for several threads.

    Args:
        most: Calls that an address may bring.
        few: Those that a connection of one that is shut out may.
        shut_s: For how long an address is shut out the first time.
        now: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        *,
        most: int = MOST,
        few: int = FEW,
        shut_s: float = SHUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._few = few
        self._shut_s = shut_s
        self._now = now
        self._ports: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        # Calls of this window.
        self._began = now()
        self._of_network: Counter[Network] = Counter()
        self._of_peer: Counter[str] = Counter()
        self._terms: dict[Network, _Term] = {}
        self._kept_out: tuple[Network, ...] = ()
        self._wake = threading.Event()
        self._is_over = self._is_useless = False
        self._thread = threading.Thread(target=self._guard, name="headrace-gate", daemon=True)

    def start(self, addresses: Iterable[str]) -> None:
        """Guard some addresses from now on."""
        self._ports = tcp_ports(addresses)
        if self._ports and sys.platform == "linux":
            self._thread.start()

    def came(self, peer: str) -> bool:
        """Note a call of a caller of whom there are many; return whether its address may call.

        Args:
            peer: Its client, as gRPC names it.
        """
        network, now = _network(peer.rpartition(":")[0]), self._now()
        if network is None:
            return True
        with self._lock:
            if now - self._began > WINDOW_S:
                self._began = now
                self._of_network.clear()
                self._of_peer.clear()
            self._of_peer[peer] += 1
            self._of_network[network] += 1
            if self._is_out(network, now):
                return False
            if self._of_network[network] <= self._most:
                return True
            self._shut(network, now)
        self._wake.set()
        return False

    def shut_out(self) -> tuple[Network, ...]:
        """Return who is to be kept from connecting now."""
        now = self._now()
        with self._lock:
            old = [one for one, term in self._terms.items() if term.until + REMEMBERED_S < now]
            for network in old:
                del self._terms[network]
            # A term that begins is put last.
            return tuple(one for one in self._terms if self._is_out(one, now))[-MOST_NETWORKS:]

    def close(self) -> None:
        """Let all in, and end the thread."""
        self._is_over = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _is_out(self, network: Network, now: float) -> bool:
        return network in self._terms and self._terms[network].until > now

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
        while not self._is_over:
            self._wake.wait(_LOOK_S if self._kept_out else _IDLE_S)
            self._wake.clear()
            networks = self.shut_out()
            if networks != self._kept_out:
                self._keep_out(networks)
            if networks:
                self._cut(frozenset(networks))
        if self._kept_out:
            self._keep_out(())

    def _keep_out(self, networks: tuple[Network, ...]) -> None:
        self._kept_out = networks
        with listeners_at(self._ports) as listeners:
            for one in listeners:
                try:
                    keep_out(one, networks)
                except OSError as error:
                    if not self._is_useless:
                        self._is_useless = True
                        _log.warning("the kernel cannot keep addresses out: %s", error)

    def _cut(self, networks: frozenset[Network]) -> None:
        """Cut those connections of networks that are shut out that bring too many calls."""
        with self._lock:
            many = {
                (network, int(peer.rpartition(":")[2]))
                for peer, count in self._of_peer.items()
                if count > self._few and (network := _network(peer.rpartition(":")[0])) in networks
            }
        if not many:
            return
        with clients_at(self._ports) as clients:
            for connection, host, port in clients:
                if (network_of(host), port) in many:
                    # gRPC, which has another descriptor of it, finds it closed.
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)


@lru_cache(maxsize=1024)
def _network(host: str) -> Network | None:
    """Return that of a client that gRPC names; None for one of a unix socket."""
    kind, _, address = host.partition(":")
    return network_of(unquote(address).strip("[]")) if kind in {"ipv4", "ipv6"} else None
