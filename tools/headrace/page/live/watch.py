"""Query the server for its state while somebody looks, at most once per second.

Contract:

1. A viewer within a second of an answer gets that answer. Without viewers, nothing is queried.
2. A query waits for `_ANSWER_S`; then the last answer is returned.
3. The answers of the last `KEPT_S` are kept, to compute rates and events.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

KEPT_S: Final = 300.0
_EVERY_S: Final = 1.0
_ANSWER_S: Final = 3.0
_MAX_ANSWERS: Final = 320


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a server at one time.

    Attributes:
        at: The time, on a monotonic clock.
        streams: The counts of its open streams, by number.
        counted: Sums of counters, by name and reason.
    """

    at: float
    streams: dict[Any, dict[str, Any]]
    counted: dict[tuple[str, str], float]

    def total(self, name: str) -> float:
        """Return a counter's sum over all reasons."""
        return sum(value for (found, _), value in self.counted.items() if found == name)


class Watch:
    """Query the server, and keep its answers; safe for several threads.

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
        self._answers: deque[Answer] = deque(maxlen=_MAX_ANSWERS)
        self._has_ended = False
        self._thread = threading.Thread(target=self._listen, name="headrace-watch", daemon=True)

    def start(self) -> None:
        """Listen to the server in a thread."""
        self._thread.start()

    def send_url(self, url: str) -> None:
        """Send the page's URL to the server."""
        with self._changed:
            self._connection.send_bytes(url.encode("ascii"))

    def answers(self) -> Sequence[Answer]:
        """Return the answers of the last minutes, after querying for a fresh one."""
        with self._changed:
            now = self._now()
            if now - self._asked_at >= _EVERY_S and not self._has_ended:
                self._asked_at = now
                try:
                    self._connection.send_bytes(b"?")
                except OSError:
                    return tuple(self._answers)
            asked_at = self._asked_at
            self._changed.wait_for(
                lambda: self._has_ended or (self._answers and self._answers[-1].at >= asked_at),
                _ANSWER_S,
            )
            while self._answers and now - self._answers[0].at > KEPT_S:
                self._answers.popleft()
            return tuple(self._answers)

    def _listen(self) -> None:
        try:
            while True:
                message = json.loads(self._connection.recv_bytes())
                answer = Answer(
                    self._now(),
                    {row["number"]: row for row in message["streams"]},
                    _sums(message["counted"]),
                )
                with self._changed:
                    self._answers.append(answer)
                    self._changed.notify_all()
        except (EOFError, OSError):
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
            self._on_end()


def _sums(counted: Sequence[tuple[str, str, float]]) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = {}
    for name, reason, value in counted:
        sums[name, reason] = sums.get((name, reason), 0.0) + value
    return sums
