"""Private servers seen from outside: which run for a runtime folder, and how they are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

_GONE_S = 120.0


def server_pids(runtime: Path) -> list[int]:
    """Return the processes that serve in a folder, zombies left out."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _serves_in(entry, runtime)
    ]


def wait_until(holds: Callable[[], bool], *, timeout_s: float = _GONE_S) -> bool:
    """Wait for something that another process does; return whether it came."""
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)  # there is nothing to wait on that the other process could signal
    return holds()


def is_over(pid: int) -> bool:
    """Return whether a process holds nothing any more: it is gone, or waits for its parent.

    A killed process counts as dead from its first thread's end on, while other threads may still
    hold its sockets and locks.
    """
    try:
        states = [
            (thread / "stat").read_text().rpartition(")")[2].split()[0]
            for thread in Path(f"/proc/{pid}/task").iterdir()
        ]
    except OSError:
        return not Path(f"/proc/{pid}").exists()
    return all(state in ("Z", "X") for state in states)


def end_servers(runtime: Path) -> None:
    """End what a test left running, and wait for it."""
    for pid in server_pids(runtime):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert wait_until(lambda: not server_pids(runtime))


def _serves_in(entry: Path, runtime: Path) -> bool:
    try:
        command = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"headrace.server" in command and any(
        part.startswith(os.fsencode(runtime)) for part in command
    )
