"""The servers that the next stream may go to."""

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
        """The names of the servers, for messages."""

    def choose(self, attempt: int, stop: threading.Event) -> Endpoint:
        """Return the server to ask next.

        Args:
            attempt: Number of failed tries since the last success.
            stop: Ends a wait; nobody sees the error that is raised then.

        Raises:
            HeadraceError: A server had to be started, and failed to start.
        """

    def each(self, stop: threading.Event, *, failing_s: float) -> Iterator[Endpoint]:
        """Yield each server once, in order of preference; one thread at a time, as for `choose`.

        Args:
            stop: See `choose`.
            failing_s: Seconds for which no server has answered.

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


@dataclass(frozen=True, slots=True)
class PrivateEndpoints:
    """The private server of this job, which is started on demand."""

    server: JobServer

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its datasets."""
        urls = ", ".join(url for _, url in self.server.sources)
        return (f"a private server of {urls}",)

    def choose(self, attempt: int, stop: threading.Event) -> Endpoint:
        """Return the server; start it if it is not running."""
        del attempt
        # Its socket is in a folder that only this user may enter.
        return Endpoint(self.server.address(stop), Access(), is_private=True)

    def each(self, stop: threading.Event, *, failing_s: float) -> Iterator[Endpoint]:
        """Yield the server."""
        del failing_s
        yield self.choose(0, stop)

    def beside(self, endpoint: Endpoint, stop: threading.Event) -> Endpoint | None:
        """Return None: there is no other server."""
        del endpoint, stop
        return None

    @property
    def has_others(self) -> bool:
        """Return True: another one may be started in its place."""
        return True

    def is_outdated(self, endpoint: Endpoint) -> bool:
        """Return False: there is no other server."""
        del endpoint
        return False

    def close(self) -> None:
        """Do nothing: the server ends without this."""


def fixed_endpoints(targets: Sequence[str], access: Access | None, *, seat: Seat) -> FixedEndpoints:
    """Return servers that are asked in turn, in plain text without ``access``."""
    return FixedEndpoints(tuple(targets), access or Access(), seat)
