"""The versions of a dataset that are open, and whether it is still served."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.errors import (
    BadArgumentError,
    HeadraceError,
    NotADatasetError,
    RebalanceError,
    TokenDatasetChangedError,
)

_FINGERPRINT = re.compile("[0-9a-f]{32}")
# Each version keeps its shard table. Runs use few versions at once; the bound is arbitrary.
_MAX_VERSIONS = 64

_Served = TypeVar("_Served")


class Versions(Generic[_Served]):
    """Open the versions that tokens name, each once; safe for several threads.

    Open versions stay open until `close`, because streams read from them.

    Args:
        name: The dataset's name.
        current: The version that is served when none is named, and its fingerprint.
        open_version: Opens the version with a fingerprint.
        list_versions: Returns the fingerprints of all versions, newest last.
    """

    def __init__(
        self,
        name: str,
        current: tuple[str, _Served],
        *,
        open_version: Callable[[str], _Served],
        list_versions: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._name = name
        self._fingerprint, self._current = current
        self._open_version = open_version
        self._list_versions = list_versions
        self._older: dict[str, _Served] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def get(self, fingerprint: str) -> _Served:
        """Return one version; the current one if the fingerprint is empty.

        Raises:
            BadArgumentError: The fingerprint is invalid.
            TokenDatasetChangedError: The store does not have that version, or no longer.
            RebalanceError: The dataset is closed.
            HeadraceError: The version exists but cannot be opened.
        """
        if fingerprint in {"", self._fingerprint}:
            return self._current
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise BadArgumentError(
                f"fingerprint is {fingerprint[:100]!r}; it must be 32 lower-case hexadecimal "
                "digits, or empty",
                field="fingerprint",
            )
        # One at a time: a thousand ranks that reconnect after an append open it once.
        with self._lock:
            found = self._older.get(fingerprint)
            if found is None:
                if self._is_closed:
                    raise RebalanceError("this dataset was reopened here; reconnect to continue")
                self._check_room(fingerprint)
                found = self._older[fingerprint] = self._open(fingerprint)
        return found

    def candidates(self) -> tuple[str, ...]:
        """Return the fingerprints of all versions: the current one, then the others, newest first.

        Raises:
            HeadraceError: The store cannot be reached.
        """
        others = [each for each in self._list_versions() if each != self._fingerprint]
        return (self._fingerprint, *reversed(others))

    def close(self) -> tuple[_Served, ...]:
        """Open no more versions; return the older ones that are open, for the caller to close."""
        with self._lock:
            self._is_closed = True
            return tuple(self._older.values())

    def _open(self, fingerprint: str) -> _Served:
        try:
            return self._open_version(fingerprint)
        except NotADatasetError as error:
            why = f"its store does not have that version: {error.message}"
            raise self._gone(fingerprint, why) from error

    def _check_room(self, fingerprint: str) -> None:
        if len(self._older) >= _MAX_VERSIONS:
            raise self._gone(
                fingerprint,
                f"this server already has {_MAX_VERSIONS} older versions open, its maximum",
            )

    def _gone(self, fingerprint: str, why: str) -> TokenDatasetChangedError:
        return TokenDatasetChangedError(
            f"a dataset with the fingerprint {fingerprint} is requested, but {self._name!r} has "
            f"{self._fingerprint}; {why}. If the token is of another dataset, read that one; else "
            "restore that version, serve it elsewhere (NAME=URL#FINGERPRINT), or start over",
            token_fingerprint=fingerprint,
            dataset_fingerprint=self._fingerprint,
        )


@dataclass(slots=True, eq=False)
class Retirement:
    """Whether a dataset is still served.

    Attributes:
        dataset: The name under which it is served.
        why: Returns the error that says why it is no longer served; None while it is. Set once.
    """

    dataset: str
    why: Callable[[], HeadraceError] | None = None
