"""The memory that the machine and this process's container have, as the kernel reports it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_CGROUP_FILE = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_MEMORY_FILE = Path("/proc/meminfo")


def memory_limit(cgroup: Path = _CGROUP_FILE, root: Path = _CGROUP_ROOT) -> int | None:
    """Return the memory limit of this process's container in bytes, or None.

    It is the lowest limit of the process's own control group and its parents, in either version of
    control groups.
    """
    return min((limit for limit, _ in _limits(cgroup, root)), default=None)


def memory_left(
    cgroup: Path = _CGROUP_FILE, root: Path = _CGROUP_ROOT, memory: Path = _MEMORY_FILE
) -> int:
    """Return how many more bytes the machine and all limits allow; 0 if the kernel does not say.

    Cached files count as used within a limit, although the kernel could drop them.
    """
    try:
        found = dict(line.split(":") for line in memory.read_text().splitlines())
        left = [int(found["MemAvailable"].split()[0]) * 1024]
        left += [limit - int(used.read_text()) for limit, used in _limits(cgroup, root)]
    except (OSError, ValueError, KeyError):
        return 0
    return max(0, min(left))


def _limits(cgroup: Path, root: Path) -> Iterator[tuple[int, Path]]:
    """Yield the limit of each control group that has one, and the file that has its use."""
    with contextlib.suppress(OSError):
        for line in cgroup.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _of_group(root, path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes"
                yield from _of_group(root / "memory", path, *names)


def _of_group(root: Path, path: str, limit_name: str, use_name: str) -> Iterator[tuple[int, Path]]:
    group = root / path.lstrip("/")
    for place in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            # Version 1 reports a huge number if there is no limit.
            limit = int((place / limit_name).read_text())
            if limit < 1 << 60:
                yield limit, place / use_name
        if place == root:
            break
