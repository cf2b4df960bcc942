"""The open streams of a server: their limits, and how they are ended.

Contract:

1. A stream that must end gets an error between two batches.
2. A stream whose time is over, whose caller has lost access or whose memory others need is cut
   `GRACE_S` later if it has not ended by then: with an error if a batch takes longer, and by force
   if its client does not read.
3. `OpenStreams.look` finds these streams; it is called a few times a second.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from headrace.errors import DrainingError, HeadraceError, RebalanceError, StreamLimitError
from headrace.server.access.callers import ANYBODY, Caller
from headrace.server.datasets.versions import Retirement
from headrace.server.stream.batch_stream import worn_error

# How long a worker with more streams than others refuses new ones (arbitrary): a few attempts of
# clients that it has sent away, but short for clients that can reach no other worker.
_REFUSAL_S = 1.0

# How long a stream may take to end after it is interrupted (arbitrary: a few messages to a client
# that reads, and less than the two seconds within which it must have ended).
GRACE_S = 1.0

# Fewer than the calls that gRPC allows on a connection, so that one more can be told: beyond those,
# clients wait without a word until one of their calls ends.
MOST_ON_CONNECTION = 120

# A caller that opens one short stream after the other counts between two of them (arbitrary).
_RECENT_S = 1.0


class Stream(Protocol):
    """A stream of batches.

    Attributes:
        expires_at: The monotonic time at which it ends.
    """

    expires_at: float

    def interrupt(self, error: HeadraceError) -> None:
        """End with an error, between two batches."""


class OpenStream:
    """One stream from its request to its end, for those that may end it; `OpenStreams` makes it.

    Args:
        cut: Ends the call in the middle of its work, and by force if it is called again.
        lost: Returns why the caller may no longer read this; None if it may.

    Attributes:
        stream: The stream; None while it is set up.
        retirements: The retirements of all datasets that it reads.
    """

    def __init__(
        self, cut: Callable[[HeadraceError], object], lost: Callable[[], HeadraceError | None]
    ) -> None:
        self._cut = cut
        self._lost = lost
        self._cut_at = math.inf
        self._error: HeadraceError = worn_error()
        # Its caller was identified before it was opened.
        self._access_changes = -1
        self.stream: Stream | None = None
        self.retirements: tuple[Retirement, ...] = ()

    def interrupt(self, error: HeadraceError) -> None:
        """End the stream with an error, between two batches."""
        if self.stream is not None:
            self.stream.interrupt(error)

    def end(self, error: HeadraceError) -> None:
        """End the stream within about `GRACE_S`: with an error, or by force."""
        self.interrupt(error)
        self._error = error
        self._cut_at = min(self._cut_at, time.monotonic() + GRACE_S)

    def look(self, now: float, *, access_changes: int) -> None:
        """End the stream if it must end, and cut it if it has not ended in time."""
        is_new, self._access_changes = access_changes != self._access_changes, access_changes
        if now >= self._cut_at:
            self._cut(self._error)
            self._cut_at = now + GRACE_S
        elif self.stream is not None and now >= self.stream.expires_at:
            self.end(worn_error())
        elif is_new and (error := self._lost()) is not None:
            self.end(error)


class OpenStreams:
    """Counts streams and calls, and ends streams; thread-safe.

    Args:
        max_streams: The most open streams.
        max_streams_per_peer: The most open streams of one address; 0 for no separate limit.
    """

    def __init__(self, max_streams: int, *, max_streams_per_peer: int = 0) -> None:
        self._max_streams = max_streams
        self._max_streams_per_peer = max_streams_per_peer
        self._changed = threading.Condition()
        self._admitted = 0
        self._admitted_of: Counter[tuple[str, str]] = Counter()
        self._callers = 0
        # Who opened one last, and who another than that, with the times.
        self._latest = self._before = ("", -math.inf)
        # In the order in which they were opened.
        self._open: dict[OpenStream, None] = {}
        self._calls = 0
        self._draining = False
        self._refuses_until = 0.0

    @property
    def count(self) -> int:
        """Number of open streams."""
        return self._admitted

    def are_others_here(self, caller: str) -> bool:
        """Return whether other callers have streams, or have opened one a moment ago."""
        _, at = self._latest if self._latest[0] != caller else self._before
        return (
            self._admitted_of["caller", caller] < self._admitted
            or time.monotonic() - at < _RECENT_S
        )

    def are_within_share(self, caller: Caller, total: int) -> bool:
        """Return whether a caller has at most its share of ``total`` streams."""
        return self._admitted_of["caller", caller.name] * self._callers <= total

    @property
    def call_count(self) -> int:
        """Number of open calls."""
        return self._calls

    @contextmanager
    def admit(
        self, caller: Caller = ANYBODY, peer: str = "", connection: str = ""
    ) -> Iterator[None]:
        """Hold a place for one stream while the context lasts.

        Args:
            caller: The caller.
            peer: The address of the caller.
            connection: The connection of the call, if its streams are limited.

        Raises:
            DrainingError: The server is shutting down.
            StreamLimitError: There are as many streams as allowed.
        """
        counted = (("caller", caller.name), ("peer", peer), ("connection", connection))
        with self._changed:
            self._check(caller, peer, connection)
            self._admitted += 1
            self._admitted_of.update(counted)
            self._callers += self._admitted_of["caller", caller.name] == 1
            if self._latest[0] != caller.name:
                self._before = self._latest
            self._latest = (caller.name, time.monotonic())
        try:
            yield
        finally:
            with self._changed:
                self._admitted -= 1
                self._admitted_of.subtract(counted)
                self._callers -= not self._admitted_of["caller", caller.name]
                # Removes empty counts, because a server sees many peers over months.
                for key in counted:
                    if not self._admitted_of[key]:
                        del self._admitted_of[key]
                if not self._admitted:
                    self._changed.notify_all()

    @contextmanager
    def opened(
        self, cut: Callable[[HeadraceError], object], lost: Callable[[], HeadraceError | None]
    ) -> Iterator[OpenStream]:
        """Register a stream while the context lasts; its arguments are those of `OpenStream`."""
        opened = OpenStream(cut, lost)
        with self._changed:
            self._open[opened] = None
        try:
            yield opened
        finally:
            with self._changed:
                del self._open[opened]
                self._changed.notify_all()

    def begin(self, opened: OpenStream, stream: Stream, retirements: Iterable[Retirement]) -> None:
        """Let a stream send batches, until `drain` or `end_dataset` ends it.

        Args:
            opened: Where it is registered.
            stream: The stream.
            retirements: The retirements of all datasets that it reads.

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
            opened.stream, opened.retirements = stream, read

    def look(self, access_changes: int) -> None:
        """End the streams that must end by now; call it a few times a second.

        Args:
            access_changes: How often the callers and their rights have changed.
        """
        with self._changed:
            streams = list(self._open)
        now = time.monotonic()
        for stream in streams:
            stream.look(now, access_changes=access_changes)

    def end_some(self, count: int) -> None:
        """End some streams between two batches, and refuse new ones for a moment.

        Their clients are asked to reconnect, to a worker with fewer streams.
        """
        with self._changed:
            self._refuses_until = time.monotonic() + _REFUSAL_S
            streams = [stream for stream in self._open if stream.stream is not None][:count]
        for stream in streams:
            stream.interrupt(_busy_error())

    def end_dataset(self, retirement: Retirement, why: Callable[[], HeadraceError]) -> None:
        """Refuse new streams of a dataset, and end open ones between two batches."""
        with self._changed:
            retirement.why = why
            streams = [stream for stream in self._open if retirement in stream.retirements]
        for stream in streams:
            stream.interrupt(why())

    def wait_dataset(self, retirement: Retirement, deadline: float) -> bool:
        """Wait until no stream of a dataset is open; return whether this met ``deadline``."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(retirement not in stream.retirements for stream in self._open),
                max(0.0, deadline - time.monotonic()),
            )

    def call_began(self) -> None:
        """Count a call; `call_ended` must follow when its last byte is sent."""
        with self._changed:
            self._calls += 1

    def call_ended(self) -> None:
        """Count the end of a call."""
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Refuse new streams, and end open ones between two batches."""
        with self._changed:
            self._draining = True
            streams = list(self._open)
        for stream in streams:
            stream.interrupt(_draining_error())

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no call is open; return whether that was before a monotonic ``deadline``."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._calls, max(0.0, deadline - time.monotonic())
            )

    def check(self, caller: Caller = ANYBODY, peer: str = "", connection: str = "") -> None:
        """Raise what `admit` would raise, without holding a place."""
        with self._changed:
            self._check(caller, peer, connection)

    def _check(self, caller: Caller, peer: str, connection: str) -> None:
        self._check_draining()
        if time.monotonic() < self._refuses_until:
            raise _busy_error()
        self._check_limits(caller, peer, connection)

    def _check_limits(self, caller: Caller, peer: str, connection: str) -> None:
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
            (
                MOST_ON_CONNECTION if connection else 0,
                self._admitted_of["connection", connection],
                "this connection has {} streams, its maximum; open others on another connection",
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
