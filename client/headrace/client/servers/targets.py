"""Choose the servers of a dataset by its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.client.options.access import Access
from headrace.client.options.private import PrivateServer
from headrace.client.options.transport import Transport
from headrace.client.servers.endpoints import Endpoints
from headrace.client.servers.fallback import FallbackEndpoints
from headrace.client.servers.private_server import PrivateEndpoints, new_run, private_server
from headrace.client.servers.replicas import Seat, fixed_endpoints
from headrace.errors import BadArgumentError


def choose_endpoints(
    addresses: Sequence[str] | None,
    urls: Mapping[str, str | None],
    access: Access,
    *,
    transport: Transport,
    seat: Seat,
) -> Endpoints:
    """Return the servers to ask; none is contacted or started.

    Args:
        addresses: The addresses of servers, at least one; None for a private server.
        urls: URL of each dataset by its name on the servers, if known.
        access: How to authenticate at the addresses.
        transport: What to read from while none of them answers, how long to wait before that, and
            the settings of a private server.
        seat: Decides which address is asked first.

    Raises:
        BadArgumentError: The arguments do not belong together.
        ConfigurationError: There is no folder for the sockets of a private server.
    """
    if addresses is None:
        return _private(urls, transport.private)
    servers = fixed_endpoints(addresses, access, seat=seat)
    if transport.fallback is None:
        return servers
    deadlines = transport.deadlines
    after_s = min(deadlines.fallback_s, deadlines.connect_s / 2, deadlines.give_up_s / 2)
    return FallbackEndpoints(servers, _private(urls, transport.private), after_s=after_s)


def lane_of(rank: int, *, world_size: int, lanes: int) -> int | None:
    """Return the lane that contains the middle of a rank's share, or None if there is only one.

    Args:
        rank: The rank, in [0, ``world_size``).
        world_size: Number of ranks, >= 1.
        lanes: Number of lanes, >= 1.
    """
    if lanes <= 1:
        return None
    return (2 * rank + 1) * lanes // (2 * world_size)


def _private(urls: Mapping[str, str | None], private: PrivateServer) -> PrivateEndpoints:
    server = private_server(_known(urls), settings=private.settings, store=private.store)
    return PrivateEndpoints(server, new_run(server.place))


def _known(urls: Mapping[str, str | None]) -> dict[str, str]:
    known = {name: url for name, url in urls.items() if url is not None}
    missing = [name for name in urls if name not in known]
    if missing:
        raise BadArgumentError(
            f"fallback.url has no URL for {missing[0]!r}; give one for each dataset, such as "
            "Fallback({'flights': 's3://bucket/flights'})",
            field="fallback",
        )
    return known
