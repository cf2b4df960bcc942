"""Choose which replica of a service a rank asks first, so that ranks spread over all of them.

By default gRPC takes the first address of a name that answers, the same for all ranks. So a name
that stands for several replicas, such as that of a headless service, is looked up here before each
stream, and each rank starts at another address:

1. All ranks of a job see the same addresses in the same order and begin one after another, so the
   streams of two replicas differ by one at most.
2. Jobs begin at different addresses, so that those of one rank spread too.
3. With lanes, ranks of one lane begin at the same replica.
4. A rank that fails there goes on to the next; at the next rotation (``REBALANCE``) it starts over
   with the replicas that exist then.

A name with one address, or of a kind that is gRPC's own, is left to gRPC, as is one that cannot be
looked up within `_LOOKUP_S`.
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

_LOOKUP_S = 5.0  # one try of the usual resolver
_TICK_S = 0.05
_NAMED = re.compile(r"(?:dns:(?:///)?)?(?P<host>[A-Za-z0-9_][A-Za-z0-9._-]*):(?P<port>\d+)")
_NUMBERS = re.compile(r"[\d.]+")


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank starts among replicas.

    Attributes:
        rank: The rank.
        job: A number that the ranks of a job have in common, and different jobs do not.
        lane: The lane that the rank reads, or None if there is only one.
    """

    rank: int = 0
    job: int = 0
    lane: int | None = None

    def of_list(self, addresses: Sequence[str]) -> list[str]:
        """Order the addresses that a user has listed: the first rank starts at the first."""
        if self.lane is not None:
            return by_preference(addresses, self.lane)
        return _from(addresses, self.rank)

    def of_name(self, addresses: Sequence[str]) -> list[str]:
        """Order the addresses that a name stands for, in whatever order they were told."""
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
        world_size: Number of ranks; one that is alone has nobody to agree with.
        seed: The seed of the order: another job often has another.
        lane: The lane that it reads, or None if there is only one.
        environment: Says which job a launcher has started; None for that of this process.
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
        lookup: Looks names up; None for the machine's own way.

    Returns:
        No addresses where gRPC does as well.
    """
    named = _NAMED.fullmatch(target)
    if named is None or _NUMBERS.fullmatch(named["host"]):
        return [], ""
    found = _look_up(named["host"], named["port"], stop, lookup or _system_lookup)
    authority = f"{named['host']}:{named['port']}"
    # Of both families where there are both: those that more replicas have, each replica once.
    families = [[one for one in found if (":" in one) is is_v6] for is_v6 in (False, True)]
    most = max(families, key=len)
    if len(most) < 2:  # noqa: PLR2004 - one replica leaves no choice
        return [], ""
    return [_grpc_address(one, named["port"]) for one in most], authority


def by_preference(addresses: Sequence[str], lane: int) -> list[str]:
    """Order addresses so that lanes spread over them, and move little when one comes or goes.

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
    """Look a name up for a bounded time: resolvers take as long as they like."""
    answers: SimpleQueue[list[str]] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(sorted(set(lookup(host, port))))
        except OSError:
            answers.put([])

    # Nobody can end a resolver, so nobody waits for this thread's end.
    threading.Thread(target=ask, name="headrace-lookup", daemon=True).start()
    for _ in range(int(_LOOKUP_S / _TICK_S)):
        try:
            return answers.get(timeout=_TICK_S)
        except Empty:
            if stop.is_set():
                break
    return []
