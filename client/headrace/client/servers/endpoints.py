"""The servers that the next stream may go to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.client.options.access import Access


def split_address(address: str) -> tuple[str, str]:
    """Return the host, without brackets, and the port of a server's address; empty if it has none.

    Args:
        address: An address as gRPC takes it, such as ``name:50051``, ``ipv6:[::1]:50051`` or
            ``dns:///name:50051``.
    """
    host, _, port = address.rpartition(":")
    host = host.rpartition("/")[2].removeprefix("ipv4:").removeprefix("ipv6:")
    return host.strip("[]"), port


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server, and how to authenticate there.

    Attributes:
        address: Its gRPC address.
        access: How to authenticate.
        is_private: Whether it is a private server.
        versions: Fingerprints by name, of the versions to read from it where a request names none.
    """

    address: str
    access: Access
    is_private: bool = False
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)

    def version_of(self, name: str) -> str:
        """Return the version to read of a dataset, or of one whose rows ``NAME:LENGTH`` names."""
        return self.versions.get(name) or self.versions.get(name.rpartition(":")[0], "")


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
