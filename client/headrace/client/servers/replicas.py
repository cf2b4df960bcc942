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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from queue import Empty, SimpleQueue

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
