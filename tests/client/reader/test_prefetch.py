"""Whoever reads, the thread or the loop, the events are the reader's, in its order."""

import contextlib
import itertools
import signal
import threading
from collections.abc import Generator, Iterator

import pytest

from headrace.client.feeds.feed import Event
from headrace.client.feeds.wait_times import HopClock
from headrace.client.reader.hedging import HedgeCounts
from headrace.client.reader.prefetch import Prefetcher
from headrace.client.wire.assembler import EpochEndEvent
from headrace.errors import (
    BadArgumentError,
    HeadraceError,
    InternalError,
    ServerUnreachableError,
)
from support.interrupt_points import InterruptAt

WAIT_S = 60.0
PAUSE_S = 0.02
"""Longer than a loop may be away and still lead, many times."""


class _Reader:
    """A reader of numbered events that pauses before each, and remembers who read."""

    def __init__(self, count: int, *, pause_s: float = 0.0, error: Exception | None = None) -> None:
        self.clock = HopClock()
        self.reconnect_count = 0
        self.hedges = HedgeCounts()
        self.threads: list[str] = []
        self.has_read = threading.Condition()
        self._count, self._pause_s, self._error = count, pause_s, error
        self._closed = threading.Event()
        self.ended = False

    def events(self) -> Generator[Event, None, None]:
        try:
            for number in range(self._count):
                if self._closed.wait(self._pause_s):
                    return
                with self.has_read:
                    self.threads.append(threading.current_thread().name)
                    self.has_read.notify_all()
                yield EpochEndEvent(number, b"")
            if self._error is not None:
                raise self._error
        finally:
            self.ended = True

    def close(self) -> None:
        self._closed.set()

    def wait_for(self, count: int) -> bool:
        with self.has_read:
            return self.has_read.wait_for(lambda: len(self.threads) >= count, WAIT_S)


def _epoch(event: Event | None) -> int:
    assert isinstance(event, EpochEndEvent)
    return event.epoch


@pytest.mark.parametrize("away_every", [1, 3, 1000])
def test_the_order_is_kept_whoever_reads(away_every: int) -> None:
    """A loop that is away now and then gets each event once, in order, and then the end."""
    reader = _Reader(60, pause_s=0.001)
    prefetcher = Prefetcher(reader, budget_bytes=0)
    pause = threading.Event()

    found = []
    while (event := prefetcher.get()) is not None:
        found.append(_epoch(event))
        if len(found) % away_every == 0:
            pause.wait(PAUSE_S)
    prefetcher.close()

    assert list(range(60)) == found
    assert prefetcher.get() is None


def test_a_loop_that_only_waits_reads_by_itself() -> None:
    """Where each event must be waited for, events are read in the loop's own thread."""
    readers: list[str] = []
    # Long beside the moments for which a busy machine takes the processor away from the loop.
    for pause_s in (PAUSE_S, 10 * PAUSE_S, 50 * PAUSE_S):
        reader = _Reader(20, pause_s=pause_s)
        prefetcher = Prefetcher(reader, budget_bytes=1 << 20)
        assert list(range(20)) == [_epoch(prefetcher.get()) for _ in range(20)]
        prefetcher.close()
        readers += reader.threads[1:]
        if threading.current_thread().name in readers:
            break

    assert threading.current_thread().name in readers


def test_the_first_event_is_read_by_the_loop() -> None:
    """It is waited for already, so nothing is handed over; unless the loop came late to ask."""
    readers = []
    for _ in range(10):
        reader = _Reader(1)
        prefetcher = Prefetcher(reader, budget_bytes=1 << 20)
        assert 0 == _epoch(prefetcher.get())
        prefetcher.close()
        readers += reader.threads

    assert threading.current_thread().name in readers


def test_events_that_are_there_already_are_not_handed_over() -> None:
    """A loop that does less than a handover costs reads by itself, however short its waits are."""
    shares = []
    for _ in range(5):
        reader = _Reader(500)
        prefetcher = Prefetcher(reader, budget_bytes=1 << 20)
        assert list(range(500)) == [_epoch(prefetcher.get()) for _ in range(500)]
        prefetcher.close()
        shares.append(reader.threads.count(threading.current_thread().name) / 500)

    # Who is scheduled away in between is away for longer.
    assert max(shares) > 1 / 2, shares


def test_reading_goes_on_while_a_loop_that_led_is_away() -> None:
    """The thread takes over, without the loop asking for anything."""
    reader = _Reader(40, pause_s=0.001)
    prefetcher = Prefetcher(reader, budget_bytes=1 << 20)
    first = [_epoch(prefetcher.get()) for _ in range(10)]

    assert reader.wait_for(40), reader.threads
    rest = [_epoch(prefetcher.get()) for _ in range(30)]
    prefetcher.close()

    assert list(range(40)) == first + rest


@pytest.mark.parametrize(
    ("error", "seen"),
    [(ServerUnreachableError("x"), HeadraceError), (RuntimeError("x"), InternalError)],
)
def test_a_failure_comes_after_the_events_before_it(
    error: Exception, seen: type[Exception]
) -> None:
    """It is the same one each time that it is asked for."""
    reader = _Reader(3, pause_s=PAUSE_S, error=error)
    prefetcher = Prefetcher(reader, budget_bytes=1 << 20)

    found = [_epoch(prefetcher.get()) for _ in range(3)]
    for _ in range(2):
        with pytest.raises(seen, match="x"):
            prefetcher.get()
    prefetcher.close()

    assert [0, 1, 2] == found


def test_closing_ends_a_loop_that_reads_by_itself() -> None:
    """Another thread closes; the loop's wait ends, and the reader's generator with it.

    It ends with an error: it is no end of the data.
    """
    reader = _Reader(1000, pause_s=PAUSE_S)
    prefetcher = Prefetcher(reader, budget_bytes=1 << 20)
    ended = threading.Event()

    def loop() -> None:
        with pytest.raises(BadArgumentError, match="was closed while"):
            list(iter(prefetcher.get, None))
        ended.set()

    thread = threading.Thread(target=loop, name="loop")
    thread.start()
    assert reader.wait_for(5)
    prefetcher.close()

    assert ended.wait(WAIT_S)
    thread.join(WAIT_S)
    assert reader.ended


class _InterruptedReader(_Reader):
    """A reader in which Ctrl-C comes: it does so in the main thread alone."""

    def events(self) -> Generator[Event, None, None]:
        for event in super().events():
            yield event
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt


def test_an_interrupted_loop_ends_the_reading() -> None:
    """Ctrl-C in the middle of a read is raised, and no end of the data comes after it."""
    prefetcher = Prefetcher(_InterruptedReader(1000, pause_s=PAUSE_S), budget_bytes=1 << 20)

    with pytest.raises(KeyboardInterrupt):
        list(iter(prefetcher.get, None))
    with pytest.raises(InternalError, match="KeyboardInterrupt"):
        prefetcher.get()
    prefetcher.close()


def _was_interrupted(points: InterruptAt, count: int = 3) -> bool:
    """Read until a signal comes at its point; return whether one did."""
    prefetcher = Prefetcher(_Reader(count), budget_bytes=1 << 20)
    found: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    try:
        with points:
            _read_all(prefetcher, found)
    except KeyboardInterrupt:
        assert list(range(len(found))) == found
        # The signal may have come when the loop had an event, and had not noted it.
        if len(found) < count - 1:
            with contextlib.suppress(HeadraceError):
                assert _epoch(prefetcher.get()) - len(found) in (0, 1)
    else:
        assert [] == points.sent
    finally:
        prefetcher.close()
    assert before is signal.getsignal(signal.SIGINT)
    assert not prefetcher._thread.is_alive()
    assert prefetcher._thread not in threading.enumerate()
    return bool(points.sent)


def _read_all(prefetcher: Prefetcher, found: list[int]) -> None:
    while (event := prefetcher.get()) is not None:
        found.append(_epoch(event))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises: who starts tests in the background of a script has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_at_any_point_is_raised() -> None:
    """Wherever it comes: no end of the data, no stale handler, and no thread comes of it."""
    for gap in itertools.count():
        if not _was_interrupted(InterruptAt(gap)):
            break

    assert gap > 50


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_at_any_point_changes_nothing() -> None:
    """However soon it comes after the first: the loop gets the one or the other."""
    for gap in range(0, 120, 7):
        for next_gap in range(0, 40, 3):
            _was_interrupted(InterruptAt(gap, next_gap))
