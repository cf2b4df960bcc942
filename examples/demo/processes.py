"""Start, watch, kill and in any case end the processes of the demo.

Contract:

1. Each process has a session of its own, so Ctrl-C reaches the demo alone, which then ends them.
2. Leaving `Processes` ends every process that still runs, the latest first, and what they started;
   SIGTERM first, SIGKILL after a while.
3. A thread a process reads its standard output, so that none blocks on a full pipe; it ends with
   the output and is joined when the process is.
4. Every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

_STOP_TIMEOUT_S = 10.0
# More than a trainer ever prints; beyond it the process waits, which is what a pipe does.
_MOST_LINES = 100_000


class ProcessFailedError(Exception):
    """A process ended that should not have, or stayed silent; the message has its last words."""


class Child:
    """One process; made by `Processes.start`."""

    def __init__(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_LINES)
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name=f"demo-{name}", daemon=True
        )
        self._reader.start()

    def read_line(self, deadline: float) -> str | None:
        """Return the next line of standard output, or None at its end.

        Args:
            deadline: Of `time.monotonic`.

        Raises:
            ProcessFailedError: No line came in time.
        """
        try:
            return self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise ProcessFailedError(
                f"{self.name} said nothing in time; {self.last_words()}"
            ) from None

    def wait(self, deadline: float) -> None:
        """Wait for a good end.

        Raises:
            ProcessFailedError: It ended with another status than 0, or not in time.
        """
        try:
            status = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ProcessFailedError(
                f"{self.name} did not end in time; {self.last_words()}"
            ) from None
        if status != 0:
            raise ProcessFailedError(f"{self.name} ended with status {status}; {self.last_words()}")

    def stop(self) -> None:
        """End the process politely if it still runs; kill it if that takes too long."""
        self.send(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait(_STOP_TIMEOUT_S)
        # What it started may have outlived it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(_STOP_TIMEOUT_S)

    def last_words(self) -> str:
        """Quote the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return f"the end of {self.log}:\n" + "\n".join(lines)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all that it started, if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


def kill(*children: Child) -> None:
    """Send SIGKILL to all of them at once; their output can still be read to its end."""
    for child in children:
        child.send(signal.SIGKILL)
    for child in children:
        child.stop()


class Processes:
    """Owns all processes of the demo."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        """Own nothing yet.

        Args:
            logs: Folder of the logs, one file a process.
            environment: Variables that every process gets on top of this one's.
        """
        self._logs = logs
        self._environment = dict(environment)
        self._children: list[Child] = []

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process; its standard error goes to ``<logs>/<name>.log``."""
        child = Child(
            name,
            command,
            environment={**self._environment, **(environment or {})},
            log=self._logs / f"{name}.log",
        )
        self._children.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in reversed(self._children):
            child.stop()
