"""Query the server for its state, for as long as it runs.

Contract:

1. The server is queried once per `TICK_S`, and once per second while somebody looks. A viewer
   within a second of an answer gets that answer.
2. A viewer waits for `_ANSWER_S` at most; then the last answer is the answer.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final, TypeVar

from headrace.page.live.history import TICK_S, Answer, History

_EVERY_S: Final = 1.0
_ANSWER_S: Final = 3.0
_Found = TypeVar("_Found")


class Watch:
    """Query the server, and keep its history; safe for several threads.

    Args:
        connection: A connection to the server.
        on_end: Called when the server has ended.
        now: Returns seconds of a monotonic clock.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        on_end: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._on_end = on_end
        self._now = now
        self._changed = threading.Condition()
        self._asked_at = float("-inf")
        self._history = History()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"headrace-watch-{name}", daemon=True)
            for name, run in (("listen", self._listen), ("ask", self._keep_asking))
        ]

    def start(self) -> None:
        """Query the server, and listen to it, in two threads."""
        for thread in self._threads:
            thread.start()

    def send_url(self, url: str) -> None:
        """Send the page's URL to the server."""
        with self._changed:
            self._connection.send_bytes(url.encode("ascii"))

    def look(self, see: Callable[[History], _Found]) -> _Found:
        """Return what a function finds in the history, after querying for a fresh answer.

        Args:
            see: The function, which must not keep the history.
        """
        with self._changed:
            self._ask()
            asked_at = self._asked_at
            self._changed.wait_for(
                lambda: (
                    self._ended.is_set()
                    or ((last := self._history.latest) is not None and last.at >= asked_at)
                ),
                _ANSWER_S,
            )
            return see(self._history)

    def glance(self, see: Callable[[History], _Found]) -> _Found:
        """Return what a function finds in the history as it is."""
        with self._changed:
            return see(self._history)

    def _ask(self) -> None:
        now = self._now()
        if now - self._asked_at >= _EVERY_S and not self._ended.is_set():
            self._asked_at = now
            with suppress(OSError):
                self._connection.send_bytes(b"?")

    def _keep_asking(self) -> None:
        while not self._ended.wait(TICK_S):
            with self._changed:
                self._ask()

    def _listen(self) -> None:
        try:
            while True:
                message = json.loads(self._connection.recv_bytes())
                # Workers number their streams separately, but a connection has one worker.
                rows = {(row["peer"], row["number"]): row for row in message["streams"]}
                streams = {key: row for key, row in rows.items() if "ended" not in row}
                ended = {key: row for key, row in rows.items() if "ended" in row}
                counted = _sums(message["counted"])
                answer = Answer(self._now(), time.time(), streams, counted, ended)
                with self._changed:
                    self._history.add(answer)
                    self._changed.notify_all()
        except (EOFError, OSError):
            with self._changed:
                self._ended.set()
                self._changed.notify_all()
            self._on_end()


def _sums(counted: Sequence[tuple[str, str, str, float]]) -> dict[tuple[str, ...], float]:
    sums: dict[tuple[str, ...], float] = {}
    for *key, value in counted:
        sums[*key,] = sums.get((*key,), 0.0) + value
    return sums
