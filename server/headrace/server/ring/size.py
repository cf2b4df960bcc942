"""How large a ring may be: what is asked for, what is configured, and what the container has."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import RingUnavailableError

# The part of what the container has left that one ring may take, so that others find room too.
_SHARE = 4
# Below this a ring is not worth its trouble (arbitrary).
LEAST_BYTES = 1 << 20
DEFAULT_BYTES = 128 << 20
_PAGE = 4096
_MIB = 1 << 20

_CGROUP_FILE = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class RingSize:
    """What a client gets.

    Attributes:
        size: Bytes of its ring.
        warning: Why that is less than it asked for, and what to do; else empty.
    """

    size: int
    warning: str = ""


def ring_size(
    wanted: int, *, most: int, limit: int | None, cache_bytes: int, open_bytes: int
) -> RingSize:
    """Return the size of a new ring.

    Args:
        wanted: What the client asks for; 0 leaves it to the server.
        most: ``ring_bytes`` of the server.
        limit: The memory that the server's container may take; None without a limit.
        cache_bytes: What its cache may take of it.
        open_bytes: How much the open rings take together.

    Raises:
        RingUnavailableError: There is no room for any.
    """
    size, warning = min(wanted or DEFAULT_BYTES, most), ""
    if limit is not None:
        left = (limit - cache_bytes - open_bytes) // _SHARE
        if left < size:
            size = left
            warning = (
                f"the container's memory limit of {limit // _MIB} MiB leaves "
                f"{max(0, left) // _MIB} MiB for a ring beside the cache of "
                f"{cache_bytes // _MIB} MiB and rings of {open_bytes // _MIB} MiB; raise the "
                "limit, or lower --cache-bytes"
            )
    if size < LEAST_BYTES:
        raise RingUnavailableError(
            warning or f"a ring of {size} bytes is less than {LEAST_BYTES}; ask for more"
        )
    return RingSize(size - size % _PAGE, warning)


def memory_limit(cgroup: Path = _CGROUP_FILE, root: Path = _CGROUP_ROOT) -> int | None:
    """Return the memory that this process's container may take in bytes, or None.

    The least of those of the process's own group and of the groups around it, in either version
    of control groups.
    """
    found = []
    with contextlib.suppress(OSError):
        for line in cgroup.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found += _limits(root, path, "memory.max")
            elif "memory" in controllers.split(","):
                found += _limits(root / "memory", path, "memory.limit_in_bytes")
    return min(found, default=None)


def _limits(root: Path, path: str, name: str) -> list[int]:
    found = []
    group = root / path.lstrip("/")
    for place in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            # Version 1 writes a number beyond all memory where there is no limit.
            limit = int((place / name).read_text())
            found += [limit] if limit < 1 << 60 else []
        if place == root:
            break
    return found
