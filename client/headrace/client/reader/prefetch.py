"""Read ahead in a thread, bounded in bytes, or in the loop's own thread if that is faster.

A loop that does nothing between two batches gains nothing from a thread that reads for it: each
batch would only be handed over. So a loop leads, which means that it reads by itself, if it waits
most of its time, or does less between two batches than a handover costs. The thread stands by, and
takes over when the loop is away for longer. At first, the loop leads.

Contract:

1. Events come out in the order in which the reader made them; the reader is never in two threads.
2. The end and a failure travel through the queue as values and come out after all events before
   them; asked again, the queue gives the same end or failure. Only the reader makes an end: a queue
   that was closed earlier raises an error.
3. No more than ``budget_bytes`` of payload wait, or one event if it is larger; while a batch as
   large as the last one has no room, none is read, and at most one that turns out larger.
4. While the loop is away, the thread reads on, at most `_AWAY_S` after the loop left; but not while
   the server itself fills memory that the loop only has to read (``is_ahead``).
5. `close` ends the reader, empties the queue and joins the thread. An exception that ends a loop's
   wait, such as Ctrl-C, ends the reading too. The loop gets this exception, whatever fails while
   the reader stops, and however often it comes. It is raised when the reader has left gRPC, which
   the thread tells it to do at once; a wait for the thread ends by itself. After that, the queue
   can only be closed.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from headrace.client.feeds.feed import Event
from headrace.client.feeds.wait_times import HopClock, HopSeconds, Recent
from headrace.client.reader.hedging import HedgeCounts
from headrace.client.reader.interrupts import HeldInterrupts
from headrace.client.wire.assembler import BatchEvent, header_of
from headrace.errors import BadArgumentError, HeadraceError, InternalError

_MOST_EVENTS = 1024
"""Most events, for those so small that the bound in bytes has no effect. Arbitrary."""

_AWAY_S = 0.02
"""A leading loop that is away for this long is at work. Until then the thread looks 50 times a
second, which takes 0.1 % of a processor."""

_LEADING_SHARE = 1 / 8
"""A loop leads while it is away for at most this part of its wait before. Arbitrary: this is the
most that is lost by not reading meanwhile."""

_HANDOVER_S = 0.0001
"""A loop also leads while it is away for no longer than a handover between two threads takes: 50 to
100 us of processor time for batches of up to 0.7 MB."""

_JOIN_S = 10.0
"""Most seconds to wait for the thread. A closed reader returns at once; the thread is a daemon."""


@dataclass(frozen=True, slots=True)
class _End:
    """The reader is done."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class Reader(Protocol):
    """The reader of a prefetcher; `BatchReader` holds the contract."""

    @property
    def reconnect_count(self) -> int:
        """How often the stream had to be opened again."""

    @property
    def hedges(self) -> HedgeCounts:
        """Counts of hedges."""

    @property
    def clock(self) -> HopClock:
        """The clock of the reader's phases."""

    def events(self) -> Generator[Event, None, None]:
        """Yield events until the end, or until `close`."""

    def close(self) -> None:
        """End the reading, from any thread."""


class ReaderAround:
    """A reader that changes the events of another one."""

    def __init__(self, reader: Reader) -> None:
        """Read from another reader.

        Args:
            reader: The other one.
        """
        self._reader = reader

    @property
    def reconnect_count(self) -> int:
        """How often the reader had to reconnect."""
        return self._reader.reconnect_count

    @property
    def hedges(self) -> HedgeCounts:
        """Counts of hedges."""
        return self._reader.hedges

    @property
    def clock(self) -> HopClock:
        """The clock of the reader's phases, which includes the work on its events."""
        return self._reader.clock

    def close(self) -> None:
        """End the reading."""
        self._reader.close()


class Prefetcher:
    """Owns a reader and the thread that drains it."""

    def __init__(
        self,
        reader: Reader,
        *,
        budget_bytes: int,
        limit: Callable[[int], int] | None = None,
        is_ahead: Callable[[], bool] | None = None,
        loop_may_lead: bool = True,
    ) -> None:
        """Prepare to read; `get` starts.

        Args:
            reader: Where the events come from; closed with this prefetcher.
            budget_bytes: Most payload bytes to hold ready, >= 0.
            limit: Returns how many of them may be held at the moment; None for all.
            is_ahead: Returns whether events are made ahead without our reading; None for never.
            loop_may_lead: Whether the reader may run in the loop's thread; otherwise only in ours.
        """
        self._reader, self._clock = reader, reader.clock
        self._source = reader.events()
        self._budget = budget_bytes
        self._limit = limit
        self._is_ahead = is_ahead or _never
        self._events: deque[Event] = deque()
        self._bytes = self._last_bytes = 0
        self._outcome: _End | _Failure | None = None
        self._closed = False
        self._is_cut_short = False
        self._is_reading = False
        # The first batch is needed at once, so the loop fetches it.
        self._loop_may_lead = self._loop_leads = loop_may_lead
        self._left_at = time.monotonic()
        self._awaited_since: float | None = None
        # Used directly: entering a condition costs two more calls of Python.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._interrupts: HeldInterrupts | None = None
        self.waited_s = 0.0
        self._thread = threading.Thread(target=self._run, name="headrace-prefetch", daemon=True)
        self._is_started = False

    @property
    def waited_on(self) -> HopSeconds:
        """The hops that the loop waited for."""
        return self._reader.clock.waited()

    def recent(self) -> Recent:
        """Return what the loop waited for in the last seconds."""
        return self._clock.recent()

    @property
    def reconnect_count(self) -> int:
        """How often the reader had to reconnect."""
        return self._reader.reconnect_count

    @property
    def hedges(self) -> HedgeCounts:
        """Counts of hedges."""
        return self._reader.hedges

    def get(self) -> Event | None:
        """Take the next event, or None when the reader is done.

        The wait is bounded by the reader's deadlines, which end in a failure.

        Raises:
            BadArgumentError: This was closed before the reader was done.
            HeadraceError: The reader gave up.
        """
        try:
            if not self._is_started:
                self.start()
            with self._lock:
                if not self._events and self._outcome is None and not self._closed:
                    return self._await()
                event = self._take()
                self._left_at = time.monotonic()
                return event
        except HeadraceError:
            raise
        except BaseException:
            # The event that was taken is lost, so no later event may be returned as the next.
            self._is_cut_short = self._closed = True
            raise

    def start(self) -> None:
        """Start reading ahead before anything is requested; once."""
        # The owner has this object already, and can end a thread that starts while Ctrl-C comes.
        self._is_started = True
        # Ctrl-C in the middle would leave a thread that `threading` lists forever.
        with HeldInterrupts(_nothing):
            self._thread.start()

    def close(self) -> None:
        """End the reading and join the thread."""
        with self._lock:
            self._is_cut_short |= self._outcome is None or bool(self._events)
            self._closed = True
            self._events.clear()
            self._changed.notify_all()
        with HeldInterrupts(_nothing):
            self._reader.close()
        if threading.current_thread() is not self._thread:
            # A thread whose start was interrupted cannot be joined, and ends without help.
            with contextlib.suppress(RuntimeError):
                self._thread.join(timeout=_JOIN_S)
        with self._lock, HeldInterrupts(_nothing):
            if not self._is_reading:
                self._source.close()

    def _take(self) -> Event | None:
        if self._events and not self._is_cut_short:
            event = self._events.popleft()
            self._bytes -= _size(event)
            self._changed.notify_all()
            return event
        if isinstance(self._outcome, _Failure):
            raise self._outcome.error
        if self._is_cut_short:
            raise _closed_early()
        return None

    def _await(self) -> Event | None:
        event: Event | None = None
        began = self._awaited_since = self._clock.begin_wait()
        try:
            # For one wait only: kept longer, it would form a cycle with this object and a ring.
            with HeldInterrupts(self._wake) as interrupts:
                self._interrupts = interrupts
                if (self._loop_leads or self._is_ahead()) and not self._is_reading:
                    event = self._read()
                else:
                    self._wait_for_thread(interrupts)
        finally:
            ended = self._clock.end_wait()
            self._awaited_since = self._interrupts = None
            self.waited_s += ended - began
            left_at, self._left_at = self._left_at, ended
        if event is None:
            event = self._take()
        else:
            self._choose_leader(ended - began, began - left_at)
        self._clock.note_wait(ended - began, lambda: _step(event))
        return event

    def _wait_for_thread(self, interrupts: HeldInterrupts) -> None:
        # The timeout lets Ctrl-C through on every platform; the reader bounds the wait.
        while interrupts.held is None and not (self._events or self._outcome or self._closed):
            self._changed.wait(timeout=1.0)

    def _choose_leader(self, wait_s: float, away_s: float) -> None:
        """Decide who reads next, by the wait that ends and the time that the loop was away."""
        leads = away_s <= _HANDOVER_S or away_s <= wait_s * _LEADING_SHARE
        self._loop_leads = leads and self._loop_may_lead
        if not (self._loop_leads or self._is_ahead()):
            self._changed.notify_all()

    def _read(self) -> Event | None:
        """Read one event; the lock is held before and after, but not meanwhile."""
        outcome: _End | _Failure = _End()
        event: Event | None = None
        self._is_reading = True
        self._lock.release()
        try:
            event = next(self._source, None)
        except HeadraceError as error:
            outcome = _Failure(error)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread: nothing may end it in silence
            outcome = _Failure(_bug(error))
            interrupt = _interrupt_behind(error)
            if interrupt is not None:
                raise interrupt from None
        except BaseException as error:
            outcome = _Failure(_bug(error))
            raise
        finally:
            self._lock_again()
            self._is_reading = False
            if self._closed:
                self._source.close()
            if event is None:
                self._outcome = outcome
                self._changed.notify_all()
        return event

    def _lock_again(self) -> None:
        """Take the lock back, whatever is raised meanwhile: the caller will release it."""
        interrupt: BaseException | None = None
        while not self._lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001 - as Condition asks
            try:
                self._lock.acquire()
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        if interrupt is not None:
            self._is_reading = False
            raise interrupt

    def _run(self) -> None:
        with self._lock:
            while self._outcome is None and not self._closed:
                if self._may_read():
                    self._loop_leads = False
                    event = self._read()
                    if event is not None:
                        self._put(event)
                elif self._is_interrupted():
                    self._end_reading()
                else:
                    looks = self._loop_leads and not self._is_ahead()
                    self._changed.wait(timeout=_AWAY_S if looks else 1.0)

    def _is_interrupted(self) -> bool:
        interrupts = self._interrupts
        return self._is_reading and interrupts is not None and interrupts.held is not None

    def _wake(self) -> None:
        """Wake the thread from a signal's handler, which may run anywhere."""
        if self._lock.acquire(blocking=False):
            self._changed.notify_all()
            self._lock.release()

    def _end_reading(self) -> None:
        """End what the interrupted loop waits for; the lock is held before and after."""
        self._is_cut_short = True
        self._lock.release()
        try:
            self._reader.close()
        finally:
            self._lock.acquire()
        while self._is_reading and not self._closed:
            self._changed.wait(timeout=1.0)

    def _may_read(self) -> bool:
        if self._is_reading or self._is_ahead():
            return False
        if self._events and self._is_full(self._last_bytes):
            return False
        return not self._loop_leads or time.monotonic() - self._left_at >= _AWAY_S

    def _put(self, event: Event) -> None:
        size = self._last_bytes = _size(event)
        # This event comes before any that could be read now.
        self._is_reading = True
        while not self._closed and self._events and self._is_full(size):
            self._changed.wait(timeout=1.0)
        self._is_reading = False
        if not self._closed:
            self._events.append(event)
            self._bytes += size
            since = self._awaited_since
            if since is not None:
                self._choose_leader(time.monotonic() - since, since - self._left_at)
            self._changed.notify_all()

    def _is_full(self, size: int) -> bool:
        budget = self._budget if self._limit is None else self._limit(self._budget)
        return self._bytes + size > budget or len(self._events) >= _MOST_EVENTS


def _step(event: Event | None) -> int | None:
    return header_of(event.mark).step if isinstance(event, BatchEvent) else None


def _never() -> bool:
    return False


def _nothing() -> None:
    """Do nothing: the call ends without help."""


def _closed_early() -> BadArgumentError:
    return BadArgumentError(
        "the stream was closed while a loop waited for its next batch; expected to close a dataset "
        "when no loop runs over it. Another `for` continues after the last batch",
        field="dataset",
    )


def _interrupt_behind(error: BaseException) -> BaseException | None:
    """Return the interrupt in whose handling an error came up, if there is one."""
    found: BaseException | None = error
    while found is not None:
        if not isinstance(found, Exception | GeneratorExit):
            return found
        found = found.__cause__ or found.__context__
    return None


def _bug(error: BaseException) -> InternalError:
    bug = InternalError(f"reading ahead failed: {error!r}; please report this")
    bug.__cause__ = error
    return bug


def _size(event: Event) -> int:
    return event.header.payload_bytes if isinstance(event, BatchEvent) else 0
