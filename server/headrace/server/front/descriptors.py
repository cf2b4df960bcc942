"""How many files this process may have open, and how many of those may be connections.

A connection costs its client nothing, but takes a descriptor here. Without a bound a few hundred
idle connections leave none for the store, and healthy streams fail.
"""

from __future__ import annotations

import resource

from headrace.server.settings.server_config import ServerConfig

# What a process has open before it serves: libraries, logs, sockets that listen (measured: 20 to
# 40), and the files of the disk cache that are read just now.
_OWN = 64
# A thread that reads from a store has a connection, one that is being replaced, a file, a spare.
_A_FETCH_THREAD = 4
# A stream with a ring has its memory, its socket, and what wakes it.
_A_RING = 3
_LEAST_CONNECTIONS = 16
# More would only take memory (arbitrary; a connection takes some 30 KiB).
_MOST_CONNECTIONS = 16_384


def raise_limit() -> int:
    """Raise this process's limit of open files as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _MOST_CONNECTIONS * 4 if hard == resource.RLIM_INFINITY else hard


def most_connections(config: ServerConfig, limit: int) -> int:
    """Return how many clients may be connected at once, so that enough is left for the store.

    Args:
        config: The settings of the server.
        limit: How many files it may have open.
    """
    has_rings = any(address.startswith("unix:") for address in config.addresses)
    rings = config.max_streams if has_rings and config.ring_bytes else 0
    left = limit - _OWN - _A_FETCH_THREAD * config.fetch_threads - _A_RING * rings
    return max(_LEAST_CONNECTIONS, min(left, _MOST_CONNECTIONS))
