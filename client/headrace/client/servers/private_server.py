"""A private server: `python -m headrace.server` as a child of a trainer, shared by its job.

Contract of `JobServer.address`:

1. It returns the address of a running server of these sources, and counts this process among those
   that the server runs for. The server ends when no process of the job is left, however they ended,
   or when nobody has read for ``LINGER_S``; the next call starts another.
2. One process of a job starts the server; the others wait for it, or for its end.
3. A new run reads the newest versions, and all its processes the same, whatever is appended in
   between; a run that continues on another server reads what it read before.
4. If the server fails to start, its own error is raised in the process that started it and, one
   after another, in those that waited.
5. Store settings, including secrets, are passed to the server through a pipe: they are in no
   command line and no environment.
6. The wait is bounded by ``_START_S``, and ends when ``stop`` is set; a server that is still
   starting is killed.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.arguments import split_source, with_source
from headrace.client.options.access import Access
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.job_versions import agreed_versions
from headrace.client.servers.runtime_folder import (
    Rendezvous,
    launched_job,
    make_folder,
    rendezvous_of,
    sweep,
    try_lock,
)
from headrace.client.servers.status import error_of_reason
from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    HeadraceError,
    ServerUnreachableError,
)

LINGER_S = 10.0
"""Seconds that a private server outlives its last stream, so that a loop that pauses between
training and validation finds its cache (design.md)."""

_START_S = 60.0
"""Most seconds until a private server answers: imports and opening take one or two, but a store or
a disk may be slow. Otherwise arbitrary."""

_NO_PROGRAM = (errno.EACCES, errno.ENOENT, errno.ENOEXEC, errno.ENOTDIR, errno.EPERM)
_POLL_S = 0.05
_SAID_BYTES = 4000

_MOST_STORE_BYTES = 16384
"""Most bytes of the settings of a store: the smallest capacity of a pipe (macOS), so that writing
them does not block."""


@dataclass(frozen=True, slots=True)
class JobServer:
    """A server on this machine for one job; the module docstring holds the contract.

    Attributes:
        place: The folder in which the processes of the job meet.
        sources: Name and URL of each dataset.
        settings: Its other settings, as JSON.
        store: How it reaches their store, as JSON; empty for the environment's settings.
    """

    place: Rendezvous
    sources: tuple[tuple[str, str], ...]
    settings: str = "{}"
    store: str = field(default="", repr=False)

    def address(self, stop: threading.Event, *, run: str, versions: dict[str, str]) -> str:
        """Return the address of the server; start it if it is not running.

        Args:
            stop: Ends the wait with an error, which nobody sees.
            run: Names the run that will read.
            versions: The fingerprints that the run reads, by name; filled in when it begins.

        Raises:
            ConfigurationError: The ``[server]`` extra is missing, or no folder for sockets exists.
            HeadraceError: The server could not start, or cannot find out which versions are the
                newest; this is the server's error.
        """
        wait = _Wait(time.monotonic() + _START_S, stop)
        # Another thread may be starting a server, this one or another.
        while not _GUARD.lock.acquire(timeout=_POLL_S):
            if wait.is_over():
                raise _late(self.place)
        try:
            lease = _GUARD.leases.get(self.place.key)
            if lease is None or not lease.renew():
                lease = _GUARD.leases[self.place.key] = self._obtain(wait)
            if run not in lease.runs:
                found = lease.join(run, versions, wait)
                versions.update(agreed_versions(f"{self.sources}/{run}", found))
                lease.runs.add(run)
        except OSError as error:  # such as no memory, no descriptor, no room on the disk
            raise ServerUnreachableError(
                f"a private server cannot be started or reached: {error}"
            ) from error
        finally:
            _GUARD.lock.release()
        return lease.address

    def _obtain(self, wait: _Wait) -> _Lease:
        while True:
            make_folder(self.place.folder)
            lease = _connect(self.place.lease, wait)
            if lease is not None:
                return lease
            if wait.is_over():
                raise _late(self.place)
            lock = try_lock(self.place.lock)
            if lock is not None:
                try:
                    return _connect(self.place.lease, wait) or self._start(wait)
                finally:
                    os.close(lock)
            wait.stop.wait(_POLL_S)

    def _start(self, wait: _Wait) -> _Lease:
        sweep(self.place)
        listen = self.place.new_socket()
        server = _started(self._command(listen))
        # Reaps the process, so that no zombie stays; a daemon, as the server may outlive us.
        threading.Thread(target=server.wait, name="headrace-private-server", daemon=True).start()
        try:
            _hand_over(self.store, server)
            said = _read_to_end(server, wait)
            lease = _connect(self.place.lease, wait)
        except BaseException:
            server.kill()
            listen.unlink(missing_ok=True)
            raise
        if lease is None:
            server.kill()
            raise _failure(said, self.sources)
        return lease

    def _command(self, listen: Path) -> list[str]:
        if not sys.executable:
            raise ConfigurationError(
                "this Python does not know its own executable, so it cannot start a private "
                "server; start one with `headrace serve NAME=URL` and give its address"
            )
        place = self.place
        command = [sys.executable, "-P", "-m", "headrace.server", "--listen", str(listen)]
        command += ["--lease", str(place.lease), "--lock", str(place.lock)]
        command += ["--linger-s", str(LINGER_S), "--settings", self.settings]
        return [*command, "--", *(f"{name}={url}" for name, url in self.sources)]


@dataclass(frozen=True, slots=True)
class PrivateEndpoints:
    """The private server of this job, which is started on demand.

    Attributes:
        server: The server.
        run: Names what reads: one dataset object, with its copies and workers, on all ranks.
        versions: What it reads, once it has begun; its copies in other processes read the same.
    """

    server: JobServer
    run: str
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its datasets."""
        urls = ", ".join(url for _, url in self.server.sources)
        return (f"a private server of {urls}",)

    def choose(self, attempt: int, stop: threading.Event) -> Endpoint:
        """Return the server; start it if it is not running."""
        del attempt
        # Its socket is in a folder that only this user may enter.
        address = self.server.address(stop, run=self.run, versions=self.versions)
        return Endpoint(address, Access(), is_private=True, versions=dict(self.versions))

    def each(self, stop: threading.Event, *, failing_s: float) -> Iterator[Endpoint]:
        """Yield the server."""
        del failing_s
        yield self.choose(0, stop)

    def beside(self, endpoint: Endpoint, stop: threading.Event) -> Endpoint | None:
        """Return None: there is no other server."""
        del endpoint, stop
        return None

    @property
    def has_others(self) -> bool:
        """Return True: another one may be started in its place."""
        return True

    def is_outdated(self, endpoint: Endpoint) -> bool:
        """Return False: there is no other server."""
        del endpoint
        return False

    def close(self) -> None:
        """Do nothing: the server ends without this."""


def private_server(
    sources: Mapping[str, str],
    *,
    settings: Mapping[str, object] | None = None,
    store: Mapping[str, object] | None = None,
) -> JobServer:
    """Describe the private server of this process's job; nothing is started.

    Args:
        sources: URL by name, or ``INDEX from SOURCE``. Local paths may be relative to the working
            folder.
        settings: Its other settings, with the names of a server's file; None for the defaults.
        store: How it reaches their store, with the names of a dataset's ``store`` in a server's
            file; None for the environment's settings.

    Raises:
        BadArgumentError: ``store`` contains other values than strings, numbers and mappings.
        ConfigurationError: The runtime folder's path is too long.
    """
    named = tuple(sorted((name, _absolute(url)) for name, url in sources.items()))
    reached = _json_of(store)
    others = json.dumps(settings or {}, sort_keys=True)
    shared = [*(f"{name}={url}" for name, url in named), others, reached]
    return JobServer(rendezvous_of(shared, os.environ), named, others, reached)


def new_run(place: Rendezvous) -> str:
    """Return the name of a new run, which is the same on all ranks of a launcher's job.

    Ranks run the same program, so the n-th dataset of a place is the same on each of them.
    """
    if not launched_job(os.environ):
        return uuid.uuid4().hex
    with _GUARD.lock:
        _GUARD.run_counts[place.key] += 1
        return str(_GUARD.run_counts[place.key])


def name_of_source(url: str) -> str:
    """Return the name under which a private server serves a URL: its last part."""
    path = split_source(url)[0].partition("#")[0].rstrip("/")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.rpartition("/")[2]).lstrip("._-")[:128]
    return name or "dataset"


@dataclass(slots=True)
class _Lease:
    """A lease, held as long as the process runs: the server notices when it ends."""

    connection: socket.socket
    address: str
    runs: set[str] = field(default_factory=set)

    def join(self, run: str, versions: Mapping[str, str], wait: _Wait) -> dict[str, str]:
        """Return what a run reads; ``versions`` if it has read these before.

        Raises:
            HeadraceError: The server cannot find out, or does not answer.
        """
        self.connection.settimeout(_POLL_S)
        try:
            said = {"watch": _pids(), "run": run, "versions": dict(versions)}
            self.connection.sendall(json.dumps(said).encode() + b"\n")
            line = _read_line(self.connection, wait)
        finally:
            self.connection.setblocking(False)
        if not line.endswith(b"\n"):
            self.connection.close()
            raise ServerUnreachableError(
                "a private server ended, or did not answer, while it looked for the newest version"
            )
        answer = json.loads(line)
        if "failure" in answer:
            failure = answer["failure"]
            raise error_of_reason(failure["reason"], failure["message"], failure["metadata"])
        found: dict[str, str] = answer["versions"]
        return found

    def renew(self) -> bool:
        """Announce that this process will read; return whether the server still listens."""
        try:
            self.connection.send(b".")
            # The server sends nothing more, so only the end can be read.
            if self.connection.recv(1):
                return True
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.connection.close()
        return False


class _Guard:
    """The leases of this process, and a lock that keeps threads from making one twice."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leases: dict[str, _Lease] = {}
        self.run_counts: Counter[str] = Counter()

    def after_fork(self) -> None:
        """Forget the leases of the parent."""
        for lease in self.leases.values():
            lease.connection.close()
        self.__init__()  # type: ignore[misc] # the same class, always


_GUARD = _Guard()
os.register_at_fork(after_in_child=_GUARD.after_fork)


@dataclass(frozen=True, slots=True)
class _Wait:
    """How long to wait: until a time of the monotonic clock, or until told to stop."""

    deadline: float
    stop: threading.Event

    def is_over(self) -> bool:
        return self.stop.is_set() or time.monotonic() >= self.deadline


def _connect(path: Path, wait: _Wait) -> _Lease | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_POLL_S)
    address = b""
    with contextlib.suppress(OSError):
        connection.connect(str(path))
        connection.sendall(json.dumps({"watch": _pids()}).encode() + b"\n")
        address = _read_line(connection, wait)
    if not address.endswith(b"\n"):
        connection.close()
        return None
    connection.setblocking(False)
    return _Lease(connection, address.decode().strip())


def _read_line(connection: socket.socket, wait: _Wait) -> bytes:
    """Return a line, or less of it if the other side closes or the wait is over."""
    line = b""
    while not line.endswith(b"\n") and not wait.is_over():
        with contextlib.suppress(TimeoutError):
            part = connection.recv(_SAID_BYTES)
            if not part:
                break
            line += part
    return line


def _pids() -> list[int]:
    # The job of a worker does not end with the worker.
    parent = multiprocessing.parent_process()
    return [os.getpid(), *([parent.pid] if parent is not None and parent.pid else [])]


def _json_of(store: Mapping[str, object] | None) -> str:
    if not store:
        return ""
    try:
        text = json.dumps(store, sort_keys=True)
    except (TypeError, ValueError):
        # Its values may be secret, and must not be in a message.
        text = ""
    if not text or len(text) > _MOST_STORE_BYTES:
        raise BadArgumentError(
            f"store has {len(text)} characters as JSON, or cannot be written as JSON; expected the "
            "store options of a dataset in a server's configuration file, as texts, numbers and "
            f"mappings, at most {_MOST_STORE_BYTES} characters",
            field="store",
        )
    return text


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C is meant for the trainer, which may need data a little longer.
            start_new_session=True,
        )
    except OSError as error:
        if error.errno not in _NO_PROGRAM:
            raise
        raise ConfigurationError(
            f"a private server cannot start: {command[0]} cannot be run here ({error.strerror}); "
            "it is this process's sys.executable, so let it be an interpreter that this user may "
            "run, or start a server with `headrace serve NAME=URL` and give its address"
        ) from error


def _hand_over(store: str, server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    with contextlib.suppress(BrokenPipeError), server.stdin as pipe:
        pipe.write(store.encode())


def _read_to_end(server: subprocess.Popen[bytes], wait: _Wait) -> str:
    """Return the server's output until it serves or ends."""
    said = b""
    assert server.stdout is not None
    with server.stdout as output, selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while not wait.is_over():
            if selector.select(_POLL_S):
                part = os.read(output.fileno(), _SAID_BYTES)
                if not part:
                    return said.decode(errors="replace")
                said = (said + part)[-_SAID_BYTES:]
    raise ServerUnreachableError(
        f"a private server did not answer within {_START_S:.0f} s; its output so far: "
        f"{said.decode(errors='replace')!r}"
    )


def _failure(said: str, sources: Sequence[tuple[str, str]]) -> HeadraceError:
    *_, last = said.strip().splitlines() or [""]
    urls = ", ".join(url for _, url in sources)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        failure = json.loads(last)
        return error_of_reason(
            failure["reason"],
            f"a private server of {urls} cannot start: {failure['message']}",
            failure["metadata"],
        )
    missing = re.search(r"No module named '([\w.]+)'", last)
    if missing is not None:
        return ConfigurationError(
            f"a private server of {urls} cannot start: {missing[1]!r} is not installed here; it "
            "comes with the [server] extra; pip install 'headrace[server]', or give the address of "
            "a running server"
        )
    return ConfigurationError(
        f"a private server of {urls} ended before it was ready; its last line: {last or 'none'}"
    )


def _late(place: Rendezvous) -> HeadraceError:
    return ServerUnreachableError(
        f"another process or thread has been starting or ending a private server for {_START_S:.0f}"
        f" s, or one that runs does not answer; its files are {place.lock} and beside it"
    )


def _absolute(url: str) -> str:
    index, source = split_source(url)
    return with_source(_absolute_path(index), None if source is None else _absolute_path(source))


def _absolute_path(url: str) -> str:
    # Also dbfs:/..., and what the server refuses, such as s3:/...
    return url if re.match(r"(\w[\w+.-]+:/|.*://)", url) else str(Path(url).absolute())
