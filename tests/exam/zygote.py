"""Start a library's processes by fork, so that what it imports is imported once.

``python -m exam.zygote MODULE...`` imports these, and forks a process for each line of JSON on its
standard input, whose number is its answer. When its input ends, so do all that it has started.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from exam import loop, trainer, write

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the requests of `exam.starts`."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what imports print is no answer
    for module in sys.argv[1:]:
        importlib.import_module(module)
    answers.write("ready\n")
    started: list[int] = []
    for line in sys.stdin:
        pid = _forked(json.loads(line), answers)
        started.append(pid)
        answers.write(f"{pid}\n")
        _reap()
    for pid in started:
        _end(pid)


def _forked(task: dict[str, Any], answers: Any) -> int:
    pid = os.fork()
    if pid:
        with suppress(OSError):  # whoever is first
            os.setpgid(pid, pid)
        return pid
    os.setpgid(0, 0)
    # Linux's prctl: whoever ends this program ends what it has started.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers.close()
    output = os.open(task["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(source, target)
    os.environ.update(task["environment"])
    _do(task)
    return 0


def _do(task: dict[str, Any]) -> None:
    """Do it, and leave without waiting for what a library left running."""
    done = {
        "train": trainer.train,
        "wait": loop.wait,
        "store": write.store,
        "serve": write.serve,
    }[task["do"]]
    trainer.recorded(Path(task["log"]), lambda log: done(task, log))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, 9)


if __name__ == "__main__":
    main()
