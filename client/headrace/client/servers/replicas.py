"""Choose which replica of a service a rank asks first, so that ranks spread over all of them.

By default, gRPC uses the first address of a name that answers, the same for all ranks. So the name
of several replicas, such as that of a headless service, is looked up here before each stream, and
each rank starts at another address:

1. All ranks of a job see the same addresses in the same order and start at successive ones, so the
   numbers of streams of two replicas differ by at most one.
2. Jobs start at different addresses, so jobs with a single rank spread too.
3. With lanes, ranks of one lane start at the same replica.
4. A rank that fails there tries the next replica; at the next rotation (``REBALANCE``) it starts
   over with the replicas that exist then.

Names with a single address, names in gRPC's own schemes, and names that cannot be looked up within
`_LOOKUP_S` are left to gRPC.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from queue import Empty, SimpleQueue

from headrace.client.options.access import Access
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.runtime_folder import launched_job

Lookup = Callable[[str, str], Sequence[str]]
"""Returns the IP addresses of a host name for a port; raises `OSError`."""

_LOOKUP_S = 5.0  # one try of common resolvers
_TICK_S = 0.05
_NAMED = re.compile(r"(?:dns:(?:///)?)?(?P<host>[A-Za-z0-9_][A-Za-z0-9._-]*):(?P<port>\d+)")
_NUMBERS = re.compile(r"[\d.]+")


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank starts among replicas.

    Attributes:
        rank: The rank.
        job: A number that is the same for all ranks of a job, and differs between jobs.
        lane: The lane that the rank reads, or None if there is only one.
    """

    rank: int = 0
    job: int = 0
    lane: int | None = None

    def of_list(self, addresses: Sequence[str]) -> list[str]:
        """Order the addresses that a user listed: the first rank starts at the first."""
        if self.lane is not None:
            return by_preference(addresses, self.lane)
        return _from(addresses, self.rank)

    def of_name(self, addresses: Sequence[str]) -> list[str]:
        """Order the addresses of a name; their given order does not matter."""
        if self.lane is not None:
            return by_preference(addresses, self.lane)
        return _from(sorted(addresses), self.rank + self.job)


def seat_of(
    *,
    rank: int,
    world_size: int,
    seed: int,
    lane: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Seat:
    """Return the seat of a rank.

    Args:
        rank: The rank.
        world_size: Number of ranks; a single rank need not agree with others.
        seed: The seed of the order, which often differs between jobs.
        lane: The lane that it reads, or None if there is only one.
        environment: Identifies the job, if a launcher started it; None for this process's.
    """
    if world_size == 1:
        return Seat(rank, int.from_bytes(os.urandom(4)), lane)
    launched = launched_job(os.environ if environment is None else environment)
    text = json.dumps([seed, launched])
    return Seat(rank, int.from_bytes(blake2b(text.encode(), digest_size=4).digest()), lane)


@dataclass(frozen=True, slots=True)
class FixedEndpoints:
    """Servers with addresses, asked in turn.

    Attributes:
        addresses: The addresses as the user gave them.
        access: How to authenticate.
        seat: Decides which of them, or of their replicas, is asked first.
        lookup: Looks names up; None for the system's resolver.
    """

    addresses: tuple[str, ...]
    access: Access
    seat: Seat
    lookup: Lookup | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The addresses."""
        return self.addresses

    def choose(self, attempt: int, stop: threading.Event) -> Endpoint:
        """Return one after another, starting with the seat's choice."""
        if len(self.addresses) == 1:
            replicas, authority = replicas_of(self.addresses[0], stop, lookup=self.lookup)
            if replicas:
                access = replace(self.access, authority=authority)
                return Endpoint(self.seat.of_name(replicas)[attempt % len(replicas)], access)
        listed = self.seat.of_list(self.addresses)
        return Endpoint(listed[attempt % len(listed)], self.access)

    def each(self, stop: threading.Event, *, failing_s: float) -> Iterator[Endpoint]:
        """Yield the addresses in their order."""
        del stop, failing_s
        return (Endpoint(address, self.access) for address in self.addresses)

    def beside(self, endpoint: Endpoint, stop: threading.Event) -> Endpoint | None:
        """Return the first choice, or the second if ``endpoint`` is the first."""
        choices = (self.choose(attempt, stop) for attempt in (0, 1))
        return next((found for found in choices if found.address != endpoint.address), None)

    @property
    def has_others(self) -> bool:
        """Whether there are several addresses, or a name that may stand for several."""
        return len(self.addresses) > 1 or self.addresses[0].startswith(("dns:", "xds:"))

    def is_outdated(self, endpoint: Endpoint) -> bool:
        """Return False: no address is better than another."""
        del endpoint
        return False

    def close(self) -> None:
        """Do nothing: there are no calls."""


def fixed_endpoints(targets: Sequence[str], access: Access | None, *, seat: Seat) -> FixedEndpoints:
    """Return servers that are asked in turn, in plain text without ``access``."""
    return FixedEndpoints(tuple(targets), access or Access(), seat)


def replicas_of(
    target: str, stop: threading.Event, *, lookup: Lookup | None = None
) -> tuple[list[str], str]:
    """Return the addresses of a name's replicas, and the authority to name in calls to them.

    Args:
        target: A gRPC address.
        stop: Ends the wait.
        lookup: Looks names up; None for the system's resolver.

    Returns:
        No addresses if the name can be left to gRPC.
    """
    named = _NAMED.fullmatch(target)
    if named is None or _NUMBERS.fullmatch(named["host"]):
        return [], ""
    found = _look_up(named["host"], named["port"], stop, lookup or _system_lookup)
    authority = f"{named['host']}:{named['port']}"
    # Of IPv4 and IPv6, the family with more addresses, so that each replica is there once.
    families = [[one for one in found if (":" in one) is is_v6] for is_v6 in (False, True)]
    most = max(families, key=len)
    if len(most) < 2:  # noqa: PLR2004 - one replica leaves no choice
        return [], ""
    return [_grpc_address(one, named["port"]) for one in most], authority


def by_preference(addresses: Sequence[str], lane: int) -> list[str]:
    """Order addresses so that lanes spread over them, and few move when one comes or goes.

    The result depends only on the set of addresses, not on their order.

    Source: rendezvous hashing, Thaler and Ravishankar, 1998.
    """

    def weight(address: str) -> bytes:
        return blake2b(f"{lane}\0{address}".encode(), digest_size=8).digest()

    return sorted(addresses, key=weight, reverse=True)


def _from(addresses: Sequence[str], start: int) -> list[str]:
    first = start % len(addresses)
    return [*addresses[first:], *addresses[:first]]


def _grpc_address(ip: str, port: str) -> str:
    return f"ipv6:[{ip}]:{port}" if ":" in ip else f"ipv4:{ip}:{port}"


def _system_lookup(host: str, port: str) -> list[str]:
    found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _look_up(host: str, port: str, stop: threading.Event, lookup: Lookup) -> list[str]:
    """Look a name up in bounded time, which resolvers do not offer."""
    answers: SimpleQueue[list[str]] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(sorted(set(lookup(host, port))))
        except OSError:
            answers.put([])

    # A resolver cannot be cancelled, so nobody joins this thread.
    threading.Thread(target=ask, name="headrace-lookup", daemon=True).start()
    for _ in range(int(_LOOKUP_S / _TICK_S)):
        try:
            return answers.get(timeout=_TICK_S)
        except Empty:
            if stop.is_set():
                break
    return []
