"""Servers for a benchmark, in processes of their own that end with it."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headrace.errors import ConfigurationError

_READY_S = 120.0  # arbitrary: imports, on a machine that is busy
_HEADRACE = "from headrace.cli.main import main; main()"


@contextmanager
def serving(name: str, url: str) -> Iterator[str]:
    """Serve a dataset with `headrace serve`, and yield the address."""
    command = [sys.executable, "-c", _HEADRACE, "serve", "--listen", "127.0.0.1:0", "--json"]
    with _child([*command, f"{name}={url}"]) as line:
        yield str(json.loads(line)["address"])


@contextmanager
def serving_ready_bytes(payload_bytes: int) -> Iterator[str]:
    """Serve the same bytes over and over, and yield the address."""
    with _child([sys.executable, "-m", "headrace.bench._ready", str(payload_bytes)]) as line:
        yield line


@contextmanager
def _child(command: Sequence[str]) -> Iterator[str]:
    """Start a program and yield its first line."""
    process = subprocess.Popen(  # noqa: S603 - our own programs
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _READY_S)
        line = process.stdout.readline().strip() if ready else ""
        if not line:
            raise ConfigurationError(
                f"a server for the benchmark was not ready within {_READY_S:.0f} s; run it by "
                f"hand to see why: {' '.join(command)}"
            )
        yield line
    finally:
        process.kill()
        process.communicate()
