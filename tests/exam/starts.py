"""Start the processes of a library, watch them, and kill them."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

_TESTS = Path(__file__).parents[1]
_IMPORT_S = 180.0  # arbitrary: TensorFlow on two busy cores
_END_S = 20.0


class Process:
    """A process that a `Starter` has started, and the group of those that it starts itself.

    Attributes:
        pid: Its number.
    """

    def __init__(self, pid: int) -> None:
        """Watch it."""
        self.pid = pid
        self._ends = os.pidfd_open(pid)

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Return whether it has ended, after waiting for that."""
        if self._ends < 0:
            return True
        poll = select.poll()
        poll.register(self._ends, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def kill(self) -> None:
        """End it and its group with SIGKILL."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, 9)

    def close(self) -> None:
        """Wait until it has ended."""
        if not self.has_ended(_END_S):
            raise RuntimeError(f"process {self.pid} does not end")
        if self._ends >= 0:
            os.close(self._ends)
            self._ends = -1


class Starter:
    """Starts processes of one library, by `exam.zygote`."""

    def __init__(self, python: str, modules: Sequence[str]) -> None:
        """Import a library.

        Args:
            python: Interpreter that has it.
            modules: What every process of it has imported when it starts.
        """
        paths = [str(_TESTS), str(_TESTS.parent / "examples")]
        quiet = {"PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        self._zygote = subprocess.Popen(
            [python, "-m", "exam.zygote", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._answer()

    def start(
        self, do: str, log: Path, *, environment: Mapping[str, str] | None = None, **told: Any
    ) -> Process:
        """Start a process.

        Args:
            do: What it does: ``train``, ``store`` or ``serve``.
            log: File for its lines of JSON; what it prints stands beside it.
            environment: Variables of this process alone.
            told: What the task needs.

        Returns:
            It, running.
        """
        output = str(log.with_suffix(".txt"))
        task = {"do": do, "log": str(log), "output": output, **told}
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(
            json.dumps({**task, "environment": dict(environment or {})}) + "\n"
        )
        self._zygote.stdin.flush()
        return Process(int(self._answer()))

    def _answer(self) -> str:
        assert self._zygote.stdout is not None
        ready, _, _ = select.select([self._zygote.stdout], [], [], _IMPORT_S)
        line = self._zygote.stdout.readline() if ready else ""
        if not line:
            self._zygote.kill()
            raise RuntimeError(f"{self._zygote.args!r} does not answer")
        return line.strip()

    def close(self) -> None:
        """End all that was started."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        with suppress(BrokenPipeError):
            self._zygote.stdin.close()
        try:
            self._zygote.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait(_END_S)
        self._zygote.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
