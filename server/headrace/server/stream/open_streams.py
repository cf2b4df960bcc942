"""The open streams of a server: how many there may be, and how all of them are ended."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from headrace.errors import DrainingError, HeadraceError, RebalanceError, StreamLimitError
from headrace.server.access.callers import ANYBODY, Caller
from headrace.server.datasets.served_dataset import Retirement
from headrace.server.stream.batch_stream import BatchStream

# How long a worker with more streams than others lets none in (arbitrary): some attempts of those
# that it has sent away, and not long for one that can come back to no other.
_REFUSAL_S = 1.0


class OpenStreams:
    """Counts streams and calls; safe for several threads.

    Args:
        max_streams: Streams open at once.
        max_streams_per_peer: How many streams one address may have open; 0 means as many as the
            server.
    """

    def __init__(self, max_streams: int, *, max_streams_per_peer: int = 0) -> None:
        self._max_streams = max_streams
        self._max_streams_per_peer = max_streams_per_peer
        self._changed = threading.Condition()
        self._admitted = 0
        self._admitted_of: Counter[tuple[str, str]] = Counter()
        self._callers = 0
        self._streams: dict[BatchStream, tuple[Retirement, ...]] = {}
        self._calls = 0
        self._draining = False
        self._refuses_until = 0.0

    @property
    def count(self) -> int:
        """Return how many streams are open."""
        return self._admitted

    def are_within_share(self, caller: Caller, total: int) -> bool:
        """Return whether a caller has no more than its share of that many streams."""
        return self._admitted_of["caller", caller.name] * self._callers <= total

    @property
    def call_count(self) -> int:
        """Return how many calls are open."""
        return self._calls

    @contextmanager
    def admit(self, caller: Caller = ANYBODY, peer: str = "") -> Iterator[None]:
        """Hold a place for one stream.

        Args:
            caller: Who asks.
            peer: The address that it asks from.

        Raises:
            DrainingError: The server is shutting down.
            StreamLimitError: There are as many as there may be.
        """
        counted = (("caller", caller.name), ("peer", peer))
        with self._changed:
            self._check(caller, peer)
            self._admitted += 1
            self._admitted_of.update(counted)
            self._callers += self._admitted_of["caller", caller.name] == 1
        try:
            yield
        finally:
            with self._changed:
                self._admitted -= 1
                self._admitted_of.subtract(counted)
                self._callers -= not self._admitted_of["caller", caller.name]
                # Peers come and go for months.
                for key in counted:
                    if not self._admitted_of[key]:
                        del self._admitted_of[key]

    @contextmanager
    def track(self, stream: BatchStream, retirements: Iterable[Retirement]) -> Iterator[None]:
        """Let `drain` and `end_dataset` end a stream while it is open.

        Args:
            stream: The stream.
            retirements: Those of all the datasets that it reads.

        Raises:
            DrainingError: The server is shutting down.
            HeadraceError: One of the datasets was retired meanwhile, with this error.
        """
        read = tuple(retirements)
        with self._changed:
            self._check_draining()
            for one in read:
                if one.why is not None:
                    raise one.why()
            self._streams[stream] = read
        try:
            yield
        finally:
            with self._changed:
                del self._streams[stream]
                self._changed.notify_all()

    def send_away(self, count: int) -> None:
        """End some streams between two of their batches, and refuse new ones for a moment.

        They are asked to reconnect, to a worker that has fewer.
        """
        with self._changed:
            self._refuses_until = time.monotonic() + _REFUSAL_S
            streams = list(self._streams)[:count]
        for stream in streams:
            stream.interrupt(_busy_error())

    def end_dataset(self, retirement: Retirement, why: Callable[[], HeadraceError]) -> None:
        """Let no stream of a dataset begin, and end the open ones between two of their batches."""
        with self._changed:
            retirement.why = why
            streams = [stream for stream, read in self._streams.items() if retirement in read]
        for stream in streams:
            stream.interrupt(why())

    def wait_dataset(self, retirement: Retirement, deadline: float) -> bool:
        """Wait until no stream of a dataset is open; return whether that was in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(retirement not in read for read in self._streams.values()),
                max(0.0, deadline - time.monotonic()),
            )

    def call_began(self) -> None:
        """Count a call; `call_ended` must follow when its last byte is out."""
        with self._changed:
            self._calls += 1

    def call_ended(self) -> None:
        """Count the end of a call."""
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Let no stream begin, and end the open ones between two of their batches."""
        with self._changed:
            self._draining = True
            streams = list(self._streams)
        for stream in streams:
            stream.interrupt(_draining_error())

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no call is open; return whether that was before ``deadline`` (monotonic)."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._calls, max(0.0, deadline - time.monotonic())
            )

    def check(self, caller: Caller = ANYBODY, peer: str = "") -> None:
        """Refuse as `admit` does, and hold no place."""
        with self._changed:
            self._check(caller, peer)

    def _check(self, caller: Caller, peer: str) -> None:
        self._check_draining()
        if time.monotonic() < self._refuses_until:
            raise _busy_error()
        self._check_limits(caller, peer)

    def _check_limits(self, caller: Caller, peer: str) -> None:
        for limit, count, text in (
            (
                self._max_streams,
                self._admitted,
                "this server has {} streams, its maximum; wait, or use another replica",
            ),
            (
                caller.max_streams,
                self._admitted_of["caller", caller.name],
                "this caller has {} streams, its maximum; wait",
            ),
            (
                self._max_streams_per_peer,
                self._admitted_of["peer", peer],
                "this address has {} streams, its maximum; wait",
            ),
        ):
            if limit and count >= limit:
                raise StreamLimitError(text.format(limit), max_streams=limit)

    def _check_draining(self) -> None:
        if self._draining:
            raise _draining_error()


def _busy_error() -> RebalanceError:
    return RebalanceError("this worker has more streams than others; reconnect to continue")


def _draining_error() -> DrainingError:
    return DrainingError("this server is shutting down; reconnect to continue, here or elsewhere")
