"""What the streams of all workers need of the cache that they share: each keeps the books of all.

A worker tells its supervisor what its streams need, and the supervisor tells the others. So each
knows a moment later what a job may use, and answers its streams without a question.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from headrace.server.cache.needs import CacheNeed, CacheNeeds, Shortage
from headrace.server.workers.messages import NeedOfOther, NeedOpened, NeedOver, ToWorker


class SharedNeeds:
    """What the streams of all workers need, in the supervisor; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[int, Callable[[ToWorker], None]] = {}
        self._needs: dict[tuple[int, int], CacheNeed] = {}
        self._count = 0

    def join(self, post: Callable[[ToWorker], None]) -> int:
        """Tell a new worker what others need, now and from now on; return its number."""
        with self._lock:
            self._count += 1
            self._workers[self._count] = post
            for stream, need in self._needs.items():
                post(NeedOfOther(stream, need))
            return self._count

    def leave(self, worker: int) -> None:
        """Forget a worker that has ended, and what it needed."""
        with self._lock:
            del self._workers[worker]
            for stream in [stream for stream in self._needs if stream[0] == worker]:
                self._change(stream, None)

    def change(self, worker: int, stream: int, need: CacheNeed | None) -> None:
        """Tell all other workers what a stream of one needs; None when it has ended."""
        with self._lock:
            self._change((worker, stream), need)

    def _change(self, stream: tuple[int, int], need: CacheNeed | None) -> None:
        if need is None:
            self._needs.pop(stream, None)
        else:
            self._needs[stream] = need
        for worker, post in self._workers.items():
            if worker != stream[0]:
                post(NeedOfOther(stream, need))


class WorkerNeeds(CacheNeeds):
    """The books of one worker, in which the streams of all others stand as well.

    Args:
        cache_bytes: The size of the cache.
        send: Sends a message to the supervisor.
    """

    def __init__(self, cache_bytes: int, *, send: Callable[[NeedOpened | NeedOver], None]) -> None:
        super().__init__(cache_bytes)
        self._send = send
        self._numbers = itertools.count(1)
        self._others: dict[tuple[int, int], ExitStack] = {}

    @contextmanager
    def held(
        self, need: CacheNeed | None, *, on_short: Callable[[], None] | None = None
    ) -> Iterator[Shortage | None]:
        with super().held(need, on_short=on_short) as shortage:
            if need is None:
                yield shortage
                return
            number = next(self._numbers)
            self._send(NeedOpened(number, need))
            try:
                yield shortage
            finally:
                self._send(NeedOver(number))

    def hear(self, message: NeedOfOther) -> None:
        """Note what a stream of another worker needs; only one thread may call this."""
        if message.need is None:
            held = self._others.pop(message.stream, None)
            if held is not None:
                held.close()
        else:
            held = self._others[message.stream] = ExitStack()
            held.enter_context(super().held(message.need))
