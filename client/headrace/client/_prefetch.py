"""Read ahead in a thread, bounded in bytes.

Contract:

1. Events come out in the order in which the reader made them.
2. The end and a failure travel through the queue as values and come out after all events before
   them; asked again, the queue gives the same end or failure.
3. No more than ``budget_bytes`` of payload wait, or one event if it is larger.
4. `close` ends the reader, empties the queue and joins the thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.client._assembler import BatchEvent
from headrace.client._feed import Event
from headrace.client._hops import HopClock, HopSeconds
from headrace.errors import HeadraceError, InternalError

_MOST_EVENTS = 1024
"""Bound for batches, and ends of epochs, too small for the bound in bytes to bite. Arbitrary."""

_JOIN_S = 10.0
"""A reader that was closed returns at once; the thread is a daemon all the same."""


@dataclass(frozen=True, slots=True)
class _Finished:
    """The reader is done."""


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class Reader(Protocol):
    """What a prefetcher drains; `BatchReader` holds the contract."""

    @property
    def reconnect_count(self) -> int:
        """How often the stream had to be opened again."""

    @property
    def clock(self) -> HopClock:
        """What the reader is busy with."""

    def events(self) -> Iterator[Event]:
        """Yield events until the end, or until `close`."""

    def close(self) -> None:
        """End the reading, from any thread."""


class Prefetcher:
    """Owns a reader and the thread that drains it."""

    def __init__(
        self,
        reader: Reader,
        *,
        budget_bytes: int,
        limit: Callable[[int], int] | None = None,
    ) -> None:
        """Start reading.

        Args:
            reader: Where the events come from; closed with this prefetcher.
            budget_bytes: Most payload bytes to hold ready, >= 0.
            limit: Returns how many of them may be held at the moment; None for all.
        """
        self._reader = reader
        self._budget = budget_bytes
        self._limit = limit
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._outcome: _Finished | _Failed | None = None
        self._closed = False
        self._changed = threading.Condition()
        self.waited_s = 0.0
        self.waited_on = HopSeconds()
        self._thread = threading.Thread(target=self._run, name="headrace-prefetch", daemon=True)
        self._thread.start()

    @property
    def reconnect_count(self) -> int:
        """How often the reader had to reconnect."""
        return self._reader.reconnect_count

    def get(self) -> Event | None:
        """Take the next event, or None when the reader is done.

        The wait is bounded by the reader's deadlines, which end in a failure.

        Raises:
            HeadraceError: The reader gave up.
        """
        with self._changed:
            if not self._events:
                self._wait_for_event()
            if self._events:
                return self._pop()
            if isinstance(self._outcome, _Failed):
                raise self._outcome.error
            return None

    def close(self) -> None:
        """End the reading and join the thread."""
        with self._changed:
            self._closed = True
            self._events.clear()
            self._changed.notify_all()
        self._reader.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=_JOIN_S)

    def _wait_for_event(self) -> None:
        begin, before = time.monotonic(), self._reader.clock.read()
        # The time-out lets Ctrl-C through on every platform; the bound is the reader's.
        while not self._events and self._outcome is None and not self._closed:
            self._changed.wait(timeout=1.0)
        self.waited_s += time.monotonic() - begin
        self.waited_on += before.until(self._reader.clock.read())

    def _pop(self) -> Event:
        event = self._events.popleft()
        self._bytes -= _size(event)
        self._changed.notify_all()
        return event

    def _run(self) -> None:
        outcome: _Finished | _Failed = _Finished()
        try:
            for event in self._reader.events():
                if not self._put(event):
                    return
        except HeadraceError as error:
            outcome = _Failed(error)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread: nothing may end it in silence
            bug = InternalError(f"the prefetch thread failed: {error!r}; please report this")
            bug.__cause__ = error
            outcome = _Failed(bug)
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()

    def _put(self, event: Event) -> bool:
        size = _size(event)
        with self._changed:
            while not self._closed and self._events and self._is_full(size):
                self._changed.wait(timeout=1.0)
            if self._closed:
                return False
            self._events.append(event)
            self._bytes += size
            self._changed.notify_all()
            return True

    def _is_full(self, size: int) -> bool:
        budget = self._budget if self._limit is None else self._limit(self._budget)
        return self._bytes + size > budget or len(self._events) >= _MOST_EVENTS


def _size(event: Event) -> int:
    return event.header.payload_bytes if isinstance(event, BatchEvent) else 0
