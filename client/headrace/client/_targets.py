"""Which servers a dataset asks, from the arguments of its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from headrace.client._access import Access
from headrace.client._config import Deadlines
from headrace.client._endpoints import Endpoints, PrivateEndpoints, fixed_endpoints
from headrace.client._fallback import FallbackEndpoints
from headrace.client._private import private_server
from headrace.errors import BadArgumentError


def choose_endpoints(
    target: str | Sequence[str] | None,
    urls: Mapping[str, str | None],
    access: Access,
    *,
    fallback: Literal["storage"] | None,
    deadlines: Deadlines,
    cache_bytes: int | None,
) -> Endpoints:
    """Return the servers to ask; nothing is asked or started.

    Args:
        target: An address, several, or None for a private server.
        urls: URL of each dataset by its name on the servers, where it is known.
        access: How to get in at the addresses.
        fallback: What to do when none of them answers.
        deadlines: How long to wait for that.
        cache_bytes: Size of a private server's cache; None for the server's default.

    Raises:
        BadArgumentError: The arguments do not belong together.
        ConfigurationError: There is no folder in which a private server could be met.
    """
    if cache_bytes is not None and cache_bytes < 1:
        raise BadArgumentError(
            f"private_cache_bytes is {cache_bytes}; wanted >= 1", field="private_cache_bytes"
        )
    if fallback not in (None, "storage"):
        raise BadArgumentError(
            f"fallback is {fallback!r}; wanted 'storage' or None", field="fallback"
        )
    if target is None:
        return PrivateEndpoints(private_server(_known(urls), cache_bytes=cache_bytes))
    servers = fixed_endpoints((target,) if isinstance(target, str) else target, access)
    if not servers.addresses:
        raise BadArgumentError("target is an empty list; wanted an address", field="target")
    if fallback is None:
        return servers
    private = PrivateEndpoints(private_server(_known(urls), cache_bytes=cache_bytes))
    after_s = min(deadlines.fallback_s, deadlines.connect_s / 2, deadlines.give_up_s / 2)
    return FallbackEndpoints(servers, private, after_s=after_s)


def _known(urls: Mapping[str, str | None]) -> dict[str, str]:
    known = {name: url for name, url in urls.items() if url is not None}
    missing = [name for name in urls if name not in known]
    if missing:
        raise BadArgumentError(
            f"fallback='storage' needs to know where {missing[0]!r} lies; give url=, such as "
            "url='s3://bucket/path'",
            field="url",
        )
    return known
