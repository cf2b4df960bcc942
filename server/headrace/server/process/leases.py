"""Keep track of the processes that use a private server.

A client process holds a lease: a connection to a unix socket, for as long as it lives. It sends a
line of JSON, ``{"watch": [pids]}``, and receives the address of the server. A dot means that it is
about to read. Before a run reads for the first time, it sends ``{"run": "...", "versions": {...}}``
and receives a line of JSON with the version of each dataset that the run reads: ``{"versions":
{name: fingerprint}}``, or ``{"failure": {...}}``. What it sent in ``versions`` it has read before,
from another server.

Contract of `Leases.wait`:

1. It returns when nobody has read for ``linger_s``, whether or not leases are held, and earlier
   when the last lease is closed and none of the processes named with leases is alive. The kernel
   closes a process's connections however it dies.
2. It returns while holding the start lock, when no client is waiting for an answer and no more are
   accepted. So a client that holds the lock and finds the socket is served, and one that does not
   find it may start another server once it has the lock. If asked to end, it waits only some
   seconds for the lock.
3. A run that is new here reads the newest versions, and all processes that name the same run read
   the same, until none of them is alive.
4. `Leases.close` removes the files in the folder, and the folder if it is empty.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.server.access.unix_clients import accept

_TICK_S = 0.25
"""How often the processes are checked (arbitrary: short compared with any linger)."""

_LOCK_S = 5.0
"""How long a server that was asked to end waits for the lock, which a client holds only while it
starts a server.
"""

_MOST_BYTES = 1 << 17
"""The most bytes of a client's message: the versions of a thousand datasets. A unix socket hands it
over in one piece."""


class Leases:
    """Answer the clients of one server; not safe for several threads."""

    def __init__(
        self, path: Path, lock: Path, *, address: str, newest: Callable[[], Mapping[str, str]]
    ) -> None:
        """Start to listen; the client that starts this server holds the start lock.

        Args:
            path: The path of the socket, in a folder that only this user can access.
            lock: The file whose lock a client holds while it starts a server.
            address: The server's address, as clients write it.
            newest: Returns the fingerprint of the newest version of each dataset.
        """
        self._path, self._lock_path = path, lock
        self._address = address
        self._newest = newest
        self._runs: dict[str, _Run] = {}
        self._lock: int | None = None
        self._watched: set[int] = set()
        self._count = 0
        self._last_used = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def wait(
        self, *, linger_s: float, is_in_use: Callable[[], bool], is_asked: Callable[[], bool]
    ) -> None:
        """Wait until nobody needs the server any more, or it is asked to end.

        Args:
            linger_s: Seconds without use after which to return.
            is_in_use: Returns whether a client is reading at the moment.
            is_asked: Returns whether the server should end even if it is needed.
        """
        while not is_asked():
            self._answer(_TICK_S)
            now = time.monotonic()
            if is_in_use():
                self._last_used = now
            is_over = now - self._last_used >= linger_s or self._is_orphaned()
            if is_over and self._is_last_word():
                break
        else:
            self._lock_soon()
        self._leave()

    def close(self) -> None:
        """Remove what the server and its clients made in the folder."""
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
        # Other servers of this user may have files in it.
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()

    def _leave(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._close(key.fileobj)
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def _lock_soon(self) -> None:
        deadline = time.monotonic() + _LOCK_S
        while self._lock is None and time.monotonic() < deadline:
            self._answer(_TICK_S)
            self._lock = _try_lock(self._lock_path)

    def _is_orphaned(self) -> bool:
        return bool(self._watched) and not self._count and not any(map(_is_alive, self._watched))

    def _is_last_word(self) -> bool:
        self._lock = _try_lock(self._lock_path)
        if self._lock is None:
            return False
        if not self._answer(0):
            return True
        os.close(self._lock)
        self._lock = None
        return False

    def _answer(self, timeout_s: float) -> bool:
        """Handle the clients' messages; return whether there were any."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if key.fileobj is self._listener:
                if (client := accept(self._listener)) is not None:
                    self._selector.register(client, selectors.EVENT_READ)
                    self._count += 1
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._listen_to(key.fileobj)
        return bool(ready)

    def _listen_to(self, client: socket.socket) -> None:
        try:
            said = client.recv(_MOST_BYTES)
            # Dots may have come before, and a client waits for each answer.
            if wanted := said.lstrip(b"."):
                client.sendall(self._answer_to(json.loads(wanted)).encode() + b"\n")
        except (OSError, ValueError, TypeError, KeyError):
            said = b""
        if said:
            self._last_used = time.monotonic()
            return
        self._close(client)
        self._count -= 1

    def _answer_to(self, wanted: Mapping[str, Any]) -> str:
        pids = {int(pid) for pid in wanted["watch"]}
        self._watched.update(pids)
        if "run" not in wanted:
            return self._address
        try:
            return json.dumps({"versions": self._join(wanted, pids)})
        except HeadraceError as error:
            known = {"reason": error.reason, "message": error.message, "metadata": error.metadata}
            return json.dumps({"failure": known})

    def _join(self, wanted: Mapping[str, Any], pids: set[int]) -> Mapping[str, str]:
        alive = {name: run for name, run in self._runs.items() if any(map(_is_alive, run.pids))}
        run = alive.get(wanted["run"]) or _Run(wanted["versions"] or self._newest())
        run.pids.update(pids)
        self._runs = {**alive, wanted["run"]: run}
        return run.versions

    def _close(self, client: object) -> None:
        assert isinstance(client, socket.socket)
        self._selector.unregister(client)
        client.close()


@dataclass(frozen=True, slots=True)
class _Run:
    """What the processes of one run read."""

    versions: Mapping[str, str]
    pids: set[int] = field(default_factory=set)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _try_lock(path: Path) -> int | None:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
