"""Where the processes of one job find their private server: a folder, a key, a lock.

The folder is ``headrace`` in ``XDG_RUNTIME_DIR``, or ``/tmp/headrace-UID``, and only this user may
use it. For each key it holds ``KEY.lock``, which is locked while a server starts or ends,
``KEY.lease``, the socket on which the server counts its clients, and ``KEY-….sock``, the socket on
which it serves. A killed process cleans nothing up, so the next one that starts a server does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from headrace.errors import ConfigurationError

MOST_SOCKET_BYTES = 107 if sys.platform == "linux" else 103
"""Most bytes of the path of a unix socket: Linux has 108 with the terminator, others 104."""

_LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("RAY_JOB_ID",),
    ("PMIX_NAMESPACE",),
    ("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that identify a launcher's job, in order of preference."""

_STORE_PREFIXES = ("AWS_", "AZURE_", "DATABRICKS_", "FSSPEC_", "GCS_", "GOOGLE_", "HF_")
"""Prefixes of variables that determine what a URL means and who reads it."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the processes of one job meet for the same sources.

    Attributes:
        folder: The runtime folder.
        key: Identifies job, sources and settings.
    """

    folder: Path
    key: str

    @property
    def lock(self) -> Path:
        """The file that is locked while a server starts or ends."""
        return self.folder / f"{self.key}.lock"

    @property
    def lease(self) -> Path:
        """The socket on which the server counts its clients."""
        return self.folder / f"{self.key}.lease"

    def new_socket(self) -> Path:
        """Return the path of a socket that no other server has."""
        return self.folder / f"{self.key}-{os.urandom(4).hex()}.sock"


def rendezvous_of(settings: Sequence[str], environment: Mapping[str, str]) -> Rendezvous:
    """Return the place where processes with the same job, settings and stores meet.

    Args:
        settings: The settings that must be equal for two processes to share a server.
        environment: Holds the job and the settings of stores.

    Raises:
        ConfigurationError: The path of the runtime folder is too long for a socket.
    """
    stores = sorted(
        (name, value) for name, value in environment.items() if name.startswith(_STORE_PREFIXES)
    )
    text = json.dumps([_job(environment), sys.executable, list(settings), stores])
    found = Rendezvous(_folder(environment), blake2b(text.encode(), digest_size=8).hexdigest())
    path = str(found.new_socket())
    if len(os.fsencode(path)) > MOST_SOCKET_BYTES:
        raise ConfigurationError(
            f"a private server's socket would be {path!r}, but a socket's path can have at most "
            f"{MOST_SOCKET_BYTES} bytes; set XDG_RUNTIME_DIR to a folder with a shorter path"
        )
    return found


def launched_job(environment: Mapping[str, str]) -> list[str]:
    """Return what identifies a launcher's job; empty without a launcher."""
    for names in _LAUNCHERS:
        values = [environment.get(name, "") for name in names]
        if all(values):
            return [*names, *values]
    return []


def make_folder(folder: Path) -> None:
    """Create the runtime folder if it does not exist.

    Raises:
        ConfigurationError: It cannot be created, or others may write to it.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"the folder {folder} for private servers cannot be made ({error.strerror}); set "
            "XDG_RUNTIME_DIR to a folder of this user"
        ) from error
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"{folder} has mode {stat.S_IMODE(found.st_mode):o} and owner {found.st_uid}; private "
            f"servers need a folder of user {os.getuid()} with mode 700: remove it, or set "
            "XDG_RUNTIME_DIR to a folder of this user"
        )


def try_lock(path: Path) -> int | None:
    """Lock a file of the runtime folder; return its descriptor, or None if it is locked."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # another server removed the folder
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino == path.stat().st_ino:
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def sweep(place: Rendezvous) -> None:
    """Remove the files of killed servers, for all keys; the caller holds this key's lock."""
    _remove_sockets(place)
    for path in place.folder.glob("*.lock"):
        other = Rendezvous(place.folder, path.stem)
        if other == place or (lock := try_lock(path)) is None:
            continue
        # A running server holds no lock, but listens.
        if not _listens(other.lease):
            _remove_sockets(other)
            path.unlink(missing_ok=True)
        os.close(lock)


def _remove_sockets(place: Rendezvous) -> None:
    for path in (place.lease, *place.folder.glob(f"{place.key}-*.sock*")):
        path.unlink(missing_ok=True)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        return True
    return False


def _job(environment: Mapping[str, str]) -> list[str]:
    # Without a launcher: the processes of one terminal, or of one notebook.
    return launched_job(environment) or ["session", str(os.getsid(0))]


def _folder(environment: Mapping[str, str]) -> Path:
    given = environment.get("XDG_RUNTIME_DIR")
    if given and Path(given).is_dir():
        return Path(given) / "headrace"
    return Path(f"/tmp/headrace-{os.getuid()}")  # noqa: S108 - its owner and mode are checked
