"""Read the configuration again on request, or when its file changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from headrace.errors import HeadraceError
from headrace.server.settings.config_layers import ConfigSource
from headrace.server.settings.server_config import ServerConfig
from headrace.server.telemetry.logs import event

# How often the file is checked, and how soon what failed is tried again: to open a dataset, or to
# read the file. Both are arbitrary; a check is one call of stat.
_POLL_S = 1.0
_RETRY_S = 30.0
# How long the end of the process waits for a reload, which a store may delay for a minute.
_JOIN_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class Reloader:
    """A thread that applies configurations, one at a time.

    Args:
        source: Where to read configurations from.
        apply: Applies a configuration to the server; returns whether all of it could be applied.
        retry_s: How soon what failed is tried again.
    """

    def __init__(
        self,
        source: ConfigSource,
        apply: Callable[[ServerConfig], bool],
        *,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._source = source
        self._retry_s = retry_s
        self._apply = apply
        # Reentrant, as `request` may be called by a signal that interrupts `close`.
        self._changed = threading.Condition()
        self._requested = False
        self._closed = False
        self._stamp = _stamp(source)
        self._retry_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-reload", daemon=True)

    def request(self) -> None:
        """Read the configuration again soon, changed or not."""
        with self._changed:
            self._requested = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requested or self._closed, _POLL_S)
                if self._closed:
                    return
                requested, self._requested = self._requested, False
            stamp = _stamp(self._source)
            is_due = self._retry_at is not None and time.monotonic() >= self._retry_at
            if requested or is_due or stamp != self._stamp:
                self._stamp = stamp
                self._reload()

    def _reload(self) -> None:
        # Unless all of it is applied: the fault may be one of the moment, such as of the disk.
        self._retry_at = time.monotonic() + self._retry_s
        try:
            is_whole = self._apply(self._source.load())
        except HeadraceError as error:
            _log.error(
                "the configuration was not changed: %s",
                error.message,
                extra=event(reason=error.reason),
            )
            return
        except Exception:  # noqa: BLE001 - a bug must not end reloading for good
            _log.exception("the configuration was not changed; this is a bug of headrace")
            return
        _log.info("configuration read again", extra=event(whole=is_whole))
        self._retry_at = None if is_whole else time.monotonic() + self._retry_s


def _stamp(source: ConfigSource) -> tuple[int, ...]:
    """Return a value that changes with the file; follows links, which Kubernetes replaces."""
    if source.file is None:
        return ()
    try:
        found = source.file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
