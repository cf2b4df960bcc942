"""Limit open files of this process, and divide them between connections and the store.

A connection costs its client nothing, but takes a descriptor here. Without a limit, a few hundred
idle connections would leave none for the store, and healthy streams would fail. Where files are
few, connections have half of those that are not the server's own, since the fewer there may be, the
sooner clients that connect again and again keep others out.
"""

from __future__ import annotations

import logging
import resource

from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.transport_plugs import transport_files

# Files that a process opens before it serves: libraries, logs, listening sockets (measured: 20 to
# 40), and files of the disk cache that are being read.
_OWN = 64
# A thread that reads from a store has a connection, one being replaced, a file, and one to spare.
_A_FETCH_THREAD = 4
_LEAST_CONNECTIONS = 16
# More would only take memory (arbitrary; a connection takes about 30 KiB).
_MOST_CONNECTIONS = 16_384

_log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise this process's limit of open files as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _MOST_CONNECTIONS * 4 if hard == resource.RLIM_INFINITY else hard


def most_fetch_threads(config: ServerConfig, limit: int) -> int:
    """Return how many threads may read from a store, so that half of the files are for clients.

    Args:
        config: The settings of the server.
        limit: How many files the process may have open.
    """
    most = max(1, _shared_files(config, limit) // 2 // _A_FETCH_THREAD)
    if most < config.fetch_threads:
        _log.warning(
            "%d threads read from each store instead of %d, because this process may have only %d "
            "files open; raise the limit (ulimit -Hn)",
            most,
            config.fetch_threads,
            limit,
        )
    return min(config.fetch_threads, most)


def most_connections(config: ServerConfig, limit: int) -> int:
    """Return how many connections to allow, so that enough descriptors are left for the store.

    Args:
        config: The settings of the server.
        limit: How many files the process may have open.
    """
    files = _shared_files(config, limit)
    left = max(files // 2, files - _A_FETCH_THREAD * config.fetch_threads)
    return max(_LEAST_CONNECTIONS, min(left, _MOST_CONNECTIONS))


def _shared_files(config: ServerConfig, limit: int) -> int:
    """Return how many files are left for connections and the store."""
    return limit - _OWN - transport_files(config, limit)
