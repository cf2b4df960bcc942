"""Where the next stream goes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.client.options.access import Access
from headrace.client.servers.private_server import JobServer
from headrace.client.servers.replicas import Lookup, Seat, replicas_of


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server, and how to authenticate there.

    Attributes:
        address: Its gRPC address.
        access: How to authenticate.
        is_private: Whether it is a private server.
    """

    address: str
    access: Access
    is_private: bool = False


class Endpoints(Protocol):
    """A choice of servers of the same datasets."""

    @property
    def names(self) -> tuple[str, ...]:
        """What there is to choose from, for messages."""

    def choose(self, attempt: int, stop: threading.Event) -> Endpoint:
        """Return the server to ask next.

        Args:
            attempt: How many tries failed since the last success.
            stop: Ends a wait; what is raised then is seen by nobody.

        Raises:
            HeadraceError: A server had to be started, and did not start.
        """

    def each(self, stop: threading.Event, *, failing_s: float) -> Iterator[Endpoint]:
        """Give every server once, in the order of preference; as `choose`, one at a time.

        Args:
            stop: See `choose`.
            failing_s: For how many seconds nobody has answered.

        Raises:
            HeadraceError: See `choose`.
        """

    def beside(self, endpoint: Endpoint, stop: threading.Event) -> Endpoint | None:
        """Return another running server of the same datasets, or None if there is none."""

    @property
    def has_others(self) -> bool:
        """Whether there may be more than one server."""

    def is_outdated(self, endpoint: Endpoint) -> bool:
        """Return whether a better choice than this is known, without waiting."""

    def close(self) -> None:
        """Drop all calls in progress; the next choice starts over."""


@dataclass(frozen=True, slots=True)
class FixedEndpoints:
    """Servers with addresses, asked in turn.

    Attributes:
        addresses: The addresses as the user gave them.
        access: How to authenticate.
        seat: Decides which of them, or of the replicas that they stand for, is asked first.
        lookup: Looks names up; None for the machine's own way.
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
        """Return one after another, starting with the one that the seat prefers."""
        if len(self.addresses) == 1:
            replicas, authority = replicas_of(self.addresses[0], stop, lookup=self.lookup)
            if replicas:
                access = replace(self.access, authority=authority)
                return Endpoint(self.seat.of_name(replicas)[attempt % len(replicas)], access)
        listed = self.seat.of_list(self.addresses)
        return Endpoint(listed[attempt % len(listed)], self.access)

    def each(self, stop: threading.Event, *, failing_s: float) -> Iterator[Endpoint]:
        """Give them as they stand."""
        del stop, failing_s
        return (Endpoint(address, self.access) for address in self.addresses)

    def beside(self, endpoint: Endpoint, stop: threading.Event) -> Endpoint | None:
        """Return the first choice, or the second where the first is meant."""
        choices = (self.choose(attempt, stop) for attempt in (0, 1))
        return next((found for found in choices if found.address != endpoint.address), None)

    @property
    def has_others(self) -> bool:
        """Whether it is a list, or a name that may stand for many."""
        return len(self.addresses) > 1 or self.addresses[0].startswith(("dns:", "xds:"))

    def is_outdated(self, endpoint: Endpoint) -> bool:
        """One is as good as another."""
        del endpoint
        return False

    def close(self) -> None:
        """Have nothing to drop."""


@dataclass(frozen=True, slots=True)
class PrivateEndpoints:
    """The private server of this job, which is started on demand."""

    server: JobServer

    @property
    def names(self) -> tuple[str, ...]:
        """What it serves."""
        urls = ", ".join(url for _, url in self.server.sources)
        return (f"a private server of {urls}",)

    def choose(self, attempt: int, stop: threading.Event) -> Endpoint:
        """Start the server if it does not run."""
        del attempt
        # Its socket lies in a folder that this user alone may enter.
        return Endpoint(self.server.address(stop), Access(), is_private=True)

    def each(self, stop: threading.Event, *, failing_s: float) -> Iterator[Endpoint]:
        """Give the one that there is."""
        del failing_s
        yield self.choose(0, stop)

    def beside(self, endpoint: Endpoint, stop: threading.Event) -> Endpoint | None:
        """There is no other."""
        del endpoint, stop
        return None

    @property
    def has_others(self) -> bool:
        """Another may be started in its place."""
        return True

    def is_outdated(self, endpoint: Endpoint) -> bool:
        """There is no other."""
        del endpoint
        return False

    def close(self) -> None:
        """Do nothing: the server ends without help."""


def fixed_endpoints(targets: Sequence[str], access: Access | None, *, seat: Seat) -> FixedEndpoints:
    """Return servers that are asked in turn, in plain text without ``access``."""
    return FixedEndpoints(tuple(targets), access or Access(), seat)
