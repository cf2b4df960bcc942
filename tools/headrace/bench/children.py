"""Run servers in child processes that end with a `with` block."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.errors import ConfigurationError

CHUNK_BYTES = 2 << 20
"""The maximum payload that a real server puts into a message."""

_READY_S = 120.0  # arbitrary: enough for imports on a busy machine
_END_S = 20.0
_HEADRACE = "from headrace.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server.

    Attributes:
        process: The server.
        address: Its address.
        ready_line: The line that it printed when it was ready.
    """

    process: subprocess.Popen[str]
    address: str
    ready_line: str

    def processor_s(self) -> float:
        """Return the processor time of the server so far in seconds; 0 on systems besides Linux."""
        try:
            return processor_s(self.process.pid)
        except OSError:
            return 0.0


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used so far, in seconds.

    Raises:
        OSError: There is no such process, or the system is not Linux.
    """
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(
    datasets: Mapping[str, str],
    *options: str,
    stderr: IO[str] | int | None = None,
    nofile: int = 0,
) -> Iterator[Serving]:
    """Serve datasets with `headrace serve`, on a free port of this machine.

    Args:
        datasets: URLs by name.
        options: Other options of the command; `--listen` for another address.
        stderr: Where its log goes, as for `subprocess`; None for our own standard error.
        nofile: The maximum number of open files; 0 for our own limit.

    Raises:
        ConfigurationError: The server was not ready in time.
    """
    command = ["sh", "-c", f'ulimit -n {nofile}; exec "$@"', "sh"] if nofile else []
    # The option may be repeated, and each adds an address.
    has_address = any(option.startswith("--listen=") for option in options)
    command += [sys.executable, "-c", _HEADRACE, "serve", "--json"]
    command += [] if has_address else ["--listen=127.0.0.1:0"]
    command += [*options, *(f"{name}={url}" for name, url in datasets.items())]
    with _started(command, stderr) as (process, line):
        yield Serving(process, str(json.loads(line)["address"]), line)


@contextmanager
def serving_ready_bytes(payload_bytes: int, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Serving]:
    """Serve the same bytes repeatedly from a bare gRPC server.

    Args:
        payload_bytes: The number of bytes.
        chunk_bytes: The maximum number of bytes in a message.
    """
    sizes = (str(payload_bytes), str(chunk_bytes))
    command = [sys.executable, "-m", "headrace.bench.ready", *sizes]
    with _started(command, subprocess.DEVNULL) as (process, line):
        yield Serving(process, line.strip(), line)


@contextmanager
def _started(
    command: Sequence[str], stderr: IO[str] | int | None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a program and yield its first line; afterwards, stop it, or kill it if necessary."""
    process = subprocess.Popen(  # noqa: S603 - our own programs
        command, stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], _READY_S)
        line = process.stdout.readline() if ready else ""
        if not line:
            raise ConfigurationError(
                f"a server was not ready within {_READY_S:.0f} s; run this command to see why: "
                f"{shlex.join(command)}"
            )
        yield process, line
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        finally:
            process.kill()
            process.stdout.close()
            process.wait(_END_S)
