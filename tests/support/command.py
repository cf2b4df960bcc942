"""The `headrace` command as a real process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.bench import children
from support.forkserver import Forked, forkable

HEADRACE = Path(sys.executable).parent / "headrace"

_READY_S, _END_S = 120.0, 20.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server.

    Attributes:
        process: The server.
        address: Its address.
        ready_line: The line that it printed when it was ready.
    """

    process: Forked | subprocess.Popen[str]
    address: str
    ready_line: str

    def processor_s(self) -> float:
        """Return the processor time of the server so far in seconds; 0 on systems besides Linux."""
        try:
            return children.processor_s(self.process.pid)
        except OSError:
            return 0.0


def run(
    *arguments: str, timeout_s: float = 280, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    variables = os.environ if environment is None else environment
    if not forkable(variables):
        return run_new(*arguments, timeout_s=timeout_s, environment=environment)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = Forked(arguments, (out.fileno(), err.fileno()), variables)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())


def run_new(
    *arguments: str, timeout_s: float = 280, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end in a process that imports all by itself."""
    return subprocess.run(
        [HEADRACE, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=environment,
    )


@contextmanager
def serving(
    datasets: Mapping[str, str],
    *options: str,
    listen: str = "127.0.0.1:0",
    stderr: IO[str] | int | None = None,
) -> Iterator[Serving]:
    """Serve datasets with `headrace serve`.

    Args:
        datasets: URLs by name.
        options: Other options of the command.
        listen: The address to listen on.
        stderr: Where its log goes, as for `subprocess`; None for our own standard error.
    """
    if not forkable(os.environ):
        with children.serving(datasets, f"--listen={listen}", *options, stderr=stderr) as new:
            yield Serving(new.process, new.address, new.ready_line)
        return
    sources = [f"{name}={url}" for name, url in datasets.items()]
    arguments = ["serve", "--listen", listen, "--json", *options, *sources]
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as out:
        try:
            process = Forked(arguments, (writing, _descriptor(stderr)), os.environ)
        finally:
            os.close(writing)
        try:
            ready, _, _ = select.select([out], [], [], _READY_S)
            line = out.readline() if ready else ""
            assert line, f"no server was ready within {_READY_S:.0f} s: {arguments}"
            yield Serving(process, str(json.loads(line)["address"]), line)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_S)
            finally:
                process.kill()
                process.wait(_END_S)


def _descriptor(stream: IO[str] | int | None) -> int:
    if stream is None:
        return 2
    return stream if isinstance(stream, int) else stream.fileno()
