"""The `headrace` command as a real process."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HEADRACE = Path(sys.executable).parent / "headrace"
_READY_S = 60


def run(
    *arguments: str, timeout_s: float = 120, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [HEADRACE, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=environment,
    )


@dataclass(frozen=True, slots=True)
class Serving:
    """A running `headrace serve`."""

    process: subprocess.Popen[str]
    address: str
    ready_line: str


@contextmanager
def serving(
    datasets: Mapping[str, str],
    *options: str,
    listen: str = "127.0.0.1:0",
    stderr: IO[str] | None = None,
) -> Iterator[Serving]:
    """Serve datasets until the block ends; the log goes where the test's own does, or to a file."""
    command = [str(HEADRACE), "serve", "--listen", listen, "--json", *options]
    command += [f"{name}={url}" for name, url in datasets.items()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _READY_S)
        line = process.stdout.readline() if ready else ""
        assert line, f"headrace serve was not ready within {_READY_S} s"
        yield Serving(process, json.loads(line)["address"], line)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
