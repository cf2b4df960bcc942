"""Credentials of S3 that are resolved again while a process runs.

botocore resolves credentials once for a session, and renews only those that state their expiry.
Others change too: a sidecar writes a shared credentials file again, an administrator replaces a
key, a process or a token file gives new ones before the old ones have expired.

Contract of `RenewedCredentials`:

1. All sources of botocore are asked again when a file of theirs has changed, which is noticed
   within `_LOOK_S`, and when a store refuses the current keys (`renew`).
2. Keys that state their expiry are renewed by botocore before it. In their last minutes it would do
   so for every request; here its answer is used for `_HOLD_S`, unless they expire sooner.
3. What cannot be resolved, such as a file that is half written, leaves the current keys in place.
4. However many threads are refused at once, the sources are asked once.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
)
from botocore.session import Session

from headrace.storage.store.lease import Grant, Lease

_LOOK_S = 1.0  # arbitrary: a look takes microseconds
_HOLD_S = 5.0  # arbitrary: asking a process or a service takes 10 to 100 ms
_PAUSE_S = 1.0  # between two attempts to get other keys than refused ones (arbitrary)

_Stamp = tuple[tuple[int, int, int] | None, ...]


class RenewedCredentials:
    """Credentials of a session, which are resolved again as the contract above says; thread-safe.

    They have what clients of botocore ask its own `Credentials` for.

    Args:
        make_session: Makes a session, which reads every file and variable again.
        files: The files that the sessions read.
    """

    def __init__(self, make_session: Callable[[], Session], files: Sequence[str]) -> None:
        self._make_session = make_session
        self._files = tuple(Path(os.path.expandvars(file)).expanduser() for file in files)
        self._lock = threading.RLock()
        self._source: Credentials | None = None
        self._held: ReadOnlyCredentials | None = None
        self._stamp: _Stamp | None = None
        self._held_at_s = self._looked_at_s = self._refused_at_s = -1e9

    @property
    def method(self) -> str:
        """Where the credentials were found, in botocore's words."""
        return "" if self._source is None else str(self._source.method)

    @property
    def current(self) -> ReadOnlyCredentials | None:
        """The keys that were last given out; nothing is asked for."""
        return self._held

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return keys that belong together.

        Raises:
            NoCredentialsError: There are none.
            BotoCoreError: They cannot be renewed.
        """
        now = time.monotonic()
        held = self._held
        if held is not None and now < min(self._held_at_s + _HOLD_S, self._looked_at_s + _LOOK_S):
            return held
        with self._lock:
            return self._current(now)

    def get_deferred_property(self, name: str) -> Callable[[], str | None]:
        """Return a function that returns a part of the current keys, such as ``account_id``."""
        return lambda: getattr(self.get_frozen_credentials(), name, None)

    def renew(self, refused: ReadOnlyCredentials | None) -> bool:
        """Return whether there are other keys than those that a store has refused.

        Raises:
            BotoCoreError: A source cannot be asked.
        """
        with self._lock:
            if self._held != refused:
                return self._held is not None
            now = time.monotonic()
            if now < self._refused_at_s + _PAUSE_S:
                return False
            self._refused_at_s = now
            self._resolve(now)
            return self._held != refused

    def _current(self, now: float) -> ReadOnlyCredentials:
        if self._source is None:
            self._resolve(now)
        elif now >= self._looked_at_s + _LOOK_S:
            self._looked_at_s = now
            if self._stamp_of_files() != self._stamp:
                with contextlib.suppress(BotoCoreError, ClientError, OSError):
                    self._resolve(now)
        if self._source is None:
            raise NoCredentialsError
        if self._held is None or now >= self._held_at_s + _HOLD_S:
            return self._hold(self._source, now)
        return self._held

    def _hold(self, source: Credentials, now: float) -> ReadOnlyCredentials:
        with _asked():
            self._held = source.get_frozen_credentials()
        expires = getattr(source, "refresh_needed", None)
        is_brief = expires is not None and expires(2 * _HOLD_S)
        self._held_at_s = now - _HOLD_S if is_brief else now
        return self._held

    def _resolve(self, now: float) -> None:
        stamp = self._stamp_of_files()
        with _asked():
            found = self._make_session().get_credentials()
        if found is not None:
            self._hold(found, now)
            self._source, self._stamp = found, stamp

    def _stamp_of_files(self) -> _Stamp:
        return tuple(map(_stamp_of, self._files))


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    """Raise botocore's error where a source cannot be asked, or gives what is not credentials."""
    try:
        yield
    except (OSError, ValueError, TypeError, AttributeError) as error:
        # botocore runs a helper and reads its answer without catching anything.
        raise CredentialRetrievalError(
            provider="a credential_process or a file", error_msg=f"{type(error).__name__}: {error}"
        ) from error


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


class LeasedCredentials:
    """Credentials of a lease, as `RenewedCredentials` has those of a session; thread-safe.

    Args:
        lease: Gives ``access_key``, ``secret_key`` and perhaps ``session_token``.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._made: tuple[Grant, ReadOnlyCredentials] | None = None

    @property
    def method(self) -> str:
        """Who gives the credentials."""
        return self._lease.title

    @property
    def current(self) -> ReadOnlyCredentials | None:
        """The keys that were last given out; nobody is asked."""
        made = self._made
        return None if made is None else made[1]

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return keys that belong together.

        Raises:
            StoreUnavailableError: They have expired, and there are no others now.
            StoreRefusedError: They are refused.
        """
        grant, made = self._lease.get(), self._made
        if made is None or made[0] is not grant:
            values = grant.values
            keys = ReadOnlyCredentials(
                values["access_key"], values["secret_key"], values.get("session_token")
            )
            self._made = made = (grant, keys)
        return made[1]

    def get_deferred_property(self, name: str) -> Callable[[], str | None]:
        """Return a function that returns a part of the current keys, such as ``account_id``."""
        return lambda: getattr(self.get_frozen_credentials(), name, None)

    def renew(self, refused: ReadOnlyCredentials | None) -> bool:
        """Return whether there are other keys than those that a store has refused.

        Raises:
            StoreUnavailableError: Their vendor is away.
            StoreRefusedError: Their vendor refuses.
        """
        made = self._made
        if made is not None and made[1] is not refused:
            return True
        return self._lease.renew(None if made is None else made[0])


class Resolver:
    """Gives a session of botocore these credentials, in place of its chain of providers.

    Args:
        credentials: The credentials.
    """

    def __init__(self, credentials: RenewedCredentials | LeasedCredentials) -> None:
        self._credentials = credentials

    def load_credentials(self) -> RenewedCredentials | LeasedCredentials:
        """Return the credentials."""
        return self._credentials
