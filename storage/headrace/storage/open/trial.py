"""Open datasets in another process first, in case a third-party decoder crashes.

Arrow, codecs and third-party file systems are written in C and C++, and a bad file may crash the
process that reads it. A process that serves more than one dataset tries each one here first.

Contract:

1. Each dataset is opened, and a block of its first, a middle and its last shard is decoded, in one
   process for all datasets.
2. A dataset that ends the process, or exceeds its time, fails. The other datasets continue in a new
   process.
3. No process outlives the call, and none outlives the caller's process.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Self

import headrace.errors
from headrace.errors import ConfigurationError, HeadraceError
from headrace.storage.source.source import SourceOptions
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.safe_url import safe_url

TRIAL_TIMEOUT_S = 300.0
"""For one dataset. Arbitrary: 100,000 footers from a store, 32 at a time, take a minute."""

_END_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A dataset to open. Picklable.

    Attributes:
        url: The URL of the dataset.
        fingerprint: The fingerprint of the version, or `None` for the current one.
        store: How to reach its store.
        source: How to read it.
    """

    url: str
    fingerprint: str | None
    store: StoreOptions
    source: SourceOptions


def try_datasets(
    trials: Mapping[str, Trial], *, timeout_s: float = TRIAL_TIMEOUT_S
) -> dict[str, HeadraceError]:
    """Open datasets in a child process.

    Args:
        trials: The datasets to open, by name.
        timeout_s: How long one dataset may take, in seconds.

    Returns:
        The error of each dataset that failed, by name.
    """
    failures: dict[str, HeadraceError] = {}
    left = dict(trials)
    while left:
        with _Child(list(left.values())) as child:
            for name in list(left):
                trial = left.pop(name)
                try:
                    failure = child.answer(timeout_s)
                except _EndedError as error:
                    failures[name] = _ended(trial, str(error))
                    break
                if failure is not None:
                    failures[name] = failure
    return failures


class _EndedError(Exception):
    """The process no longer answers; the message says why."""


class _Child:
    """A process that opens datasets, one after another."""

    def __init__(self, trials: list[Trial]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this program itself
                [sys.executable, "-m", "headrace.storage.open.trial_child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(ours.detach())
        with contextlib.suppress(OSError):  # it has ended, as the first answer shows
            self._connection.send(trials)

    def answer(self, timeout_s: float) -> HeadraceError | None:
        """Wait for the result of the next dataset.

        Raises:
            _EndedError: The process ended, or did not answer in time.
        """
        try:
            if not self._connection.poll(timeout_s):
                raise _EndedError(f"did not finish within {timeout_s:g} s")
            return _failure(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise _EndedError(_death(self._process)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait(_END_TIMEOUT_S)


def _failure(answer: bytes) -> HeadraceError | None:
    found = json.loads(answer)
    if found is None:
        return None
    name, message, metadata = found
    # The other process answers only with text, because a decoder may have corrupted it.
    kind = getattr(headrace.errors, name) if name in headrace.errors.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = ConfigurationError
    return kind(message, **metadata)


def _death(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _ended(trial: Trial, how: str) -> ConfigurationError:
    url = safe_url(trial.url)
    return ConfigurationError(
        f"{url} was opened in a separate process as a trial, and that process {how}: its files "
        "crash the program that reads them, or take too long; find the file with `headrace "
        "verify`, and write it again",
        url=url,
    )
