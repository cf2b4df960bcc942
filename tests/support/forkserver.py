"""Fork processes of the `headrace` command from one that has imported what commands need.

A process of its own takes most of its processor time to import NumPy, pyarrow, gRPC and the
command. A forked one has all of that. Its streams, environment, folder and exit code are its own.

``python forkserver.py FD`` reads requests from that socket.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

_MOST_BYTES = 128 << 10
_ALSO = (
    "headrace.cli.main",
    "headrace.cli.stored.row_counter",
    "headrace.cli.show.python_values",
    "headrace.client",
    "headrace.loadtest",
    "headrace.server",
    "headrace.server.process.check_config",
    "headrace.server.process.serve",
    "pyarrow.compute",
    "pyarrow.parquet",
)
"""What commands import only when they run. What is not there is left to them."""

_AT_START = ("GRPC_", "LANG", "LC_", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "PYTHON", "TZ")


def forkable(environment: Mapping[str, str]) -> bool:
    """Tell whether variables that a process reads only when it starts are as they are here."""
    names = {name for name in {*environment, *_FIRST} if name.startswith(_AT_START)}
    return all(environment.get(name) == _FIRST.get(name) for name in names)


_FIRST = dict(os.environ)


class Forked:
    """A process of the command, with the methods of `subprocess.Popen` that tests use.

    Args:
        arguments: What stands after `headrace`.
        streams: Descriptors of its standard output and standard error.
        environment: All variables.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        streams: tuple[int, int],
        environment: Mapping[str, str],
    ) -> None:
        self._told, theirs = socket.socketpair()
        with theirs:
            request = json.dumps([list(arguments), dict(environment), str(Path.cwd())])
            socket.send_fds(_forkserver(), [request.encode()], [theirs.fileno(), *streams])
        self._lines = self._told.makefile("r", encoding="ascii")
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._told, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._told.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


@cache
def _forkserver() -> socket.socket:
    """Start the process to fork from, and end it with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=_FIRST,
        )

    @atexit.register
    def end() -> None:
        ours.close()
        process.kill()
        process.wait()

    return ours


def _import_all() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as the command does, before it loads gRPC
    commands = entry_points(group="headrace.commands")
    for name in (*_ALSO, *(command.module for command in commands)):
        with suppress(ModuleNotFoundError):
            import_module(name)
    gc.collect()
    gc.freeze()


def _forked(requests: socket.socket) -> list[str]:
    """Fork a process for each request; return its arguments in each."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector, requests:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    _tell_end(key.fd, *running.pop(key.fd))
                    continue
                message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
                if not message:
                    sys.exit()
                told, *streams = descriptors
                pid = os.fork()
                if not pid:
                    for fd, (_, other) in running.items():
                        os.close(fd)
                        other.close()
                    return _become(message, told, streams)
                for fd in streams:
                    os.close(fd)
                ended = os.pidfd_open(pid)
                running[ended] = (pid, socket.socket(fileno=told))
                running[ended][1].sendall(b"%d\n" % pid)
                selector.register(ended, selectors.EVENT_READ)


def _tell_end(ended: int, pid: int, told: socket.socket) -> None:
    os.close(ended)
    _, status = os.waitpid(pid, 0)
    with told, suppress(OSError):  # nobody waits for it
        told.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(message: bytes, told: int, streams: list[int]) -> list[str]:
    """Take the streams, the environment and the folder of a request."""
    os.close(told)
    for fd, stream in enumerate(streams, 1):
        os.dup2(stream, fd)
        os.close(stream)
    arguments, environment, folder = json.loads(message)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    return list(arguments)


def _main() -> NoReturn:
    command = Path(sys.executable).parent / "headrace"
    sys.path[0] = str(command.parent)
    requests = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    sys.argv = [str(command), *_forked(requests)]
    main()
    sys.exit()


if __name__ == "__main__":
    from headrace.cli.main import main

    _main()
