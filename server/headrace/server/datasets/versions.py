"""The older versions of a dataset that runs go on with after an append."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace.errors import BadArgumentError, NotADatasetError, TokenDatasetChangedError

_FINGERPRINT = re.compile("[0-9a-f]{32}")
# Each holds its shard table. Runs go on with few versions at once; the bound is arbitrary.
_MAX_VERSIONS = 64

_Served = TypeVar("_Served")


class Versions(Generic[_Served]):
    """Opens the versions that tokens name, each once; safe for several threads.

    What is open stays open: streams read from it.

    Args:
        name: The dataset's name.
        current: The version that is served when none is named, and its fingerprint.
        open_version: Opens the version of a fingerprint.
        list_versions: Gives the fingerprints of those that there are, the newest last.
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
        self._lock = threading.Lock()

    def get(self, fingerprint: str) -> _Served:
        """Return one version; the current one if the fingerprint is empty.

        Raises:
            BadArgumentError: The fingerprint is none.
            TokenDatasetChangedError: The store has no such version, or no longer.
            HeadraceError: It has, and it cannot be opened.
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
                self._check_room(fingerprint)
                found = self._older[fingerprint] = self._open(fingerprint)
        return found

    def candidates(self) -> tuple[str, ...]:
        """Return the fingerprints that can be had, the current one first, then newer ones first.

        Raises:
            HeadraceError: The store cannot be asked.
        """
        others = [each for each in self._list_versions() if each != self._fingerprint]
        return (self._fingerprint, *reversed(others))

    @property
    def older(self) -> tuple[_Served, ...]:
        """Return the older versions that are open."""
        with self._lock:
            return tuple(self._older.values())

    def _open(self, fingerprint: str) -> _Served:
        try:
            return self._open_version(fingerprint)
        except NotADatasetError as error:
            raise self._gone(fingerprint, "its store no longer has that version") from error

    def _check_room(self, fingerprint: str) -> None:
        if len(self._older) >= _MAX_VERSIONS:
            raise self._gone(
                fingerprint, f"this server has {_MAX_VERSIONS} older ones open, as many as it may"
            )

    def _gone(self, fingerprint: str, why: str) -> TokenDatasetChangedError:
        return TokenDatasetChangedError(
            f"a dataset with the fingerprint {fingerprint} is wanted, and {self._name!r} has "
            f"{self._fingerprint}; {why}. Restore it, serve it elsewhere (NAME=URL#FINGERPRINT), "
            "or start anew",
            token_fingerprint=fingerprint,
            dataset_fingerprint=self._fingerprint,
        )
