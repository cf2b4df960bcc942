"""Check the host name of a request.

This prevents DNS rebinding, in which the name of another site is made to resolve to this page.
Numeric addresses cannot be rebound, so they are accepted.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def is_known_host(header: str, names: Collection[str]) -> bool:
    """Return whether a ``Host`` header names this page.

    Args:
        header: The header as received.
        names: Names of the page in lower case, besides ``localhost``.
    """
    found = _HOST.fullmatch(header)
    if found is None:
        return False
    name = found["name"].strip("[]").lower()
    return name == "localhost" or name in names or _is_address(name)


def is_own_origin(origin: str, host: str) -> bool:
    """Return whether an ``Origin`` header names a host, including the port."""
    parts = urlsplit(origin)
    return parts.scheme in {"http", "https"} and parts.netloc.lower() == host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
