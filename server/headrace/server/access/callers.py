"""Decide who may read what, from a file of callers that is reread when it changes.

The file is JSON, ``{"tokens": [{"name", "sha256" or "token" or "subject", "datasets",
"max_streams", "operator"}, …]}``; docs/callers.md describes it. Callers are found by the SHA-256
of their token; neither the token nor its digest ever appears in logs or messages. A subject is a
name in a client certificate that mutual TLS has verified.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import AccessDeniedError, ConfigurationError, UnauthenticatedError

_EVERYTHING = "*"
_KEYS = {"name", "sha256", "token", "subject", "datasets", "max_streams", "operator"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Shorter ones can be guessed (arbitrary).
_MIN_TOKEN_LENGTH = 16
_MAX_FILE_BYTES = 16 * 1024 * 1024

LOOK_S = 0.25
"""A token that was removed from the file stays valid no longer than this (a part of the 2 s within
which its streams end). For an unknown token the file is checked at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Attributes:
        name: The entry's name, for the log; never the token itself.
        datasets: The names of datasets that it may read; None means all.
        max_streams: The maximum number of its open streams; 0 means the server's limit.
        is_operator: Whether the page shows it the whole server and all callers' streams.
    """

    name: str = ""
    datasets: frozenset[str] | None = None
    max_streams: int = 0
    is_operator: bool = False

    def may_read(self, dataset: str) -> bool:
        """Return whether it may see a dataset."""
        return self.datasets is None or dataset in self.datasets


ANYBODY = Caller(is_operator=True)


class Access:
    """Authenticate callers; safe for several threads.

    Args:
        path: The file of tokens; None lets anyone read everything.
        now: Returns seconds of a monotonic clock.

    Raises:
        ConfigurationError: The file cannot be read or is invalid.
    """

    def __init__(self, path: Path | None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._looked_at = now()
        self._lock = threading.Lock()
        self._callers: dict[bytes | str, Caller] = {}
        self._changes = 0
        self._stamp: tuple[int, int, int] | None = None
        # Why the file could not be read, so that the log says it once.
        self._last_error = ""
        if path is not None:
            self._stamp = _stamp(path)
            self._callers = read_tokens(path)

    @property
    def is_open(self) -> bool:
        """Return whether anyone may read everything."""
        return self._path is None

    def changes(self) -> int:
        """Return how often the file has changed since the start, checking it from time to time."""
        if self._path is not None:
            self._refresh_if_due(self._path)
        return self._changes

    def caller(
        self,
        metadata: Iterable[tuple[str, str | bytes]],
        subjects: Callable[[], Iterable[str]] = list,
    ) -> Caller:
        """Return the caller to whom the token belongs, or without a token, the certificate.

        Args:
            metadata: The metadata of the call.
            subjects: Returns the names in the client's verified certificate.

        Raises:
            UnauthenticatedError: Neither the token nor a name is known.
            AccessDeniedError: The caller may read nothing.
        """
        if self._path is None:
            return ANYBODY
        token = presented(metadata)
        names = frozenset() if token else frozenset(subjects())
        self._refresh_if_due(self._path)
        found = self._known(token, names)
        if found is None:
            # The token may have been added a moment ago.
            self._refresh(self._path)
            found = self._known(token, names)
        if found is None:
            raise UnauthenticatedError(
                "the call has no bearer token or certificate that this server knows; give one with "
                "Access(auth=…) or --token-file"
            )
        if found.datasets == frozenset():
            raise AccessDeniedError(
                f"{found.name!r} may read no dataset here; ask the operator of this server"
            )
        return found

    def _known(self, token: bytes, subjects: frozenset[str]) -> Caller | None:
        if token:
            # Not in constant time, and need not be: what it could reveal is part of a known digest,
            # from which no token can be computed.
            return self._callers.get(hashlib.sha256(token).digest())
        return next((self._callers[key] for key in self._callers if key in subjects), None)

    def _refresh_if_due(self, path: Path) -> None:
        # Without the lock: two simultaneous checks do no harm.
        if self._now() >= self._looked_at + LOOK_S:
            self._refresh(path)

    def _refresh(self, path: Path) -> None:
        """Read the file again if it changed; while it is damaged, the tokens stay the same."""
        with self._lock:
            self._looked_at = self._now()
            try:
                stamp = _stamp(path)
                if stamp == self._stamp:
                    return
                # Not before: a file that cannot be read now may be readable later, unchanged.
                self._callers = read_tokens(path)
                self._stamp = stamp
                self._changes += 1
            except ConfigurationError as error:
                if error.message != self._last_error:
                    _log.error("callers were not changed: %s", error.message)
                self._last_error = error.message
            else:
                self._last_error = ""
                _log.info("%d callers read from %s", len(self._callers), path)


def read_tokens(path: Path) -> dict[bytes | str, Caller]:
    """Return the callers in a file of tokens, by the digests of their tokens or their subjects.

    Raises:
        ConfigurationError: It cannot be read or is invalid; the message contains no secrets.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        top = json.loads(content) if len(content) <= _MAX_FILE_BYTES else None
    except OSError as error:
        raise _refusal(path, f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        # Not chained: the decoder's error contains the whole file.
        raise _refusal(path, "is not JSON") from None
    stated = top.get("tokens") if isinstance(top, dict) and set(top) == {"tokens"} else None
    if not isinstance(stated, list):
        raise _refusal(path, 'must be {"tokens": [...]} and nothing else')
    entries = [_entry(path, index, one) for index, one in enumerate(stated)]
    callers = dict(entries)
    for what, count in (
        ("names", len({caller.name for _, caller in entries})),
        ("tokens or subjects", len(callers)),
    ):
        if count < len(entries):
            raise _refusal(path, f"has two entries with the same {what}")
    return callers


def _entry(path: Path, index: int, stated: object) -> tuple[bytes | str, Caller]:
    if not isinstance(stated, dict) or not set(stated) <= _KEYS:
        raise _refusal(path, f"entry {index} must have no keys but {', '.join(sorted(_KEYS))}")
    name, datasets = stated.get("name"), stated.get("datasets")
    if not isinstance(name, str) or not name:
        raise _refusal(path, f"entry {index} must have a name")
    if not isinstance(datasets, list) or not all(isinstance(one, str) for one in datasets):
        raise _refusal(path, f'entry {index} must have datasets: a list of names, or ["*"]')
    max_streams = stated.get("max_streams", 0)
    if type(max_streams) is not int or max_streams < 0:
        raise _refusal(path, f"entry {index} must have max_streams >= 0, or leave it out")
    operator = stated.get("operator", False)
    if type(operator) is not bool:
        raise _refusal(path, f"entry {index} must have operator true or false, or leave it out")
    allowed = None if _EVERYTHING in datasets else frozenset(datasets)
    caller = Caller(name, allowed, max_streams, operator)
    subject = stated.get("subject")
    if isinstance(subject, str) and subject and not {"token", "sha256"} & set(stated):
        return subject, caller
    return _digest(path, index, stated), caller


def _digest(path: Path, index: int, stated: Mapping[str, object]) -> bytes:
    token, digest = stated.get("token"), stated.get("sha256")
    if "subject" not in stated:
        if isinstance(digest, str) and token is None and _DIGEST.fullmatch(digest):
            return bytes.fromhex(digest)
        if isinstance(token, str) and digest is None and len(token) >= _MIN_TOKEN_LENGTH:
            return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
    raise _refusal(
        path,
        f"entry {index} must have one of sha256, 64 lower-case hexadecimal digits, token, "
        f"{_MIN_TOKEN_LENGTH} characters or more, and subject, a name in a client's certificate",
    )


def presented(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Return the bearer token of a call, or an empty text, which no entry has."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer":
                return token.strip().encode(errors="replace")
    return b""


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise _refusal(path, f"cannot be read ({error.strerror})") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _refusal(path: Path, found: str) -> ConfigurationError:
    return ConfigurationError(f"the file of tokens {path} {found}; see docs/callers.md")


# The names of a certificate's owner, as verified by gRPC.
_NAMES = ("x509_subject_alternative_name", "x509_common_name")


def subjects_of(auth_context: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Return the names in the client's certificate; none without mutual TLS."""
    return [name.decode(errors="replace") for key in _NAMES for name in auth_context.get(key, ())]


def host_of(peer: str) -> str:
    """Return the address of a client without its port; clients of a unix socket share one."""
    kind, _, rest = peer.partition(":")
    return kind if kind == "unix" else rest.rpartition(":")[0]
