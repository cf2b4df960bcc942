"""Account for the time in which a stream had nothing to send.

A stream is behind while its client could take a message and there is none. Of that time it waited
for its store, or decoded, or did anything else: planned, copied, waited for its turn. A wait for
blocks is put down to the store and to decoding as the last reads of the dataset spent their time:
what a reading thread needed a processor for is decoding, the rest was a wait for bytes.

A process that gets no processor cannot see it in its own times: what it waited for looks slow.
`Stalls` sees it, since a thread that sleeps for a moment sleeps for longer then.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakSet

_TICK_S: Final = 0.1
"""Between two looks: 10 a second take 0.05 % of a processor."""
_LATE_S: Final = 0.03
"""A thread that is woken later than this got no processor; usually it takes less than 1 ms."""
_HALF_LIFE_S: Final = 2.0
"""After which a read counts half as much as a new one."""
_LOOK_S: Final = 0.2
"""How old what is known of running reads may be: to look takes 3 us a thread."""
_SCHEDSTAT: Final = "schedstat"
_SCHEDSTAT_BYTES: Final = 64


class Waits(NamedTuple):
    """Seconds in which a stream had nothing to send, by what it did.

    Attributes:
        store_s: It waited for its store.
        decode_s: Blocks were decoded, or stages ran.
        server_s: Anything else; and all time in which the process got no processor.
    """

    store_s: float = 0.0
    decode_s: float = 0.0
    server_s: float = 0.0


class Stalls:
    """Counts the time in which this process got no processor, in a thread of its own.

    Args:
        regularly: What else the thread calls.
        every_s: How often.

    Attributes:
        seconds: The time so far.
    """

    def __init__(self, regularly: Callable[[], None], *, every_s: float) -> None:
        self.seconds = 0.0
        self._regularly, self._every_s = regularly, every_s
        # Held until the end: an event would cost six times as much for each look.
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = threading.Thread(target=self._run, name="headrace-stalls", daemon=True)

    def start(self) -> None:
        """Begin to count."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, if there is one."""
        if self._thread.is_alive():
            self._running.release()
            self._thread.join()

    def _run(self) -> None:
        before = called = time.monotonic()
        spent_before_s = time.process_time()
        while not self._running.acquire(timeout=_TICK_S):
            now = time.monotonic()
            if now - called >= self._every_s:
                called = now
                self._regularly()
            late_s, spent_s = now - before - _TICK_S, time.process_time()
            if late_s >= _LATE_S:
                # Other threads may have worked meanwhile, and had Python's lock.
                self.seconds += max(0.0, late_s - (spent_s - spent_before_s))
            before, spent_before_s = now, spent_s


class _Thread:
    """The processor time of a thread that reads: what it had of one, and what it waited for one."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(f"/proc/thread-self/{_SCHEDSTAT}", os.O_RDONLY)
        self._before_s = 0.0

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def begin(self) -> float:
        """Return the seconds since the last call, and count from now on; in the thread itself."""
        total_s = time.thread_time() if self._file is None else self._total_s()
        grown_s, self._before_s = total_s - self._before_s, total_s
        return grown_s

    def so_far(self) -> float:
        """Return the seconds since `begin`, in any thread; 0 if the system does not say."""
        return 0.0 if self._file is None else max(0.0, self._total_s() - self._before_s)

    def _total_s(self) -> float:
        assert self._file is not None
        try:
            ran, waited, _ = os.pread(self._file, _SCHEDSTAT_BYTES, 0).split()
        except (OSError, ValueError):
            # The thread has ended.
            return self._before_s
        return (int(ran) + int(waited)) / 1e9


@dataclass(slots=True)
class _Spent:
    """The seconds of recent reads.

    Attributes:
        at: When the last one ended.
        all_s: All of them.
        busy_s: Those with work for a processor.
    """

    at: float
    all_s: float = 0.0
    busy_s: float = 0.0


class ReadTimes:
    """What the recent reads of each dataset spent their time on. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent: dict[str, _Spent] = {}
        self._own = threading.local()
        self._threads: WeakSet[_Thread] = WeakSet()
        self._running = (0.0, 0.0)

    def note(self, dataset: str, seconds: float) -> None:
        """Note a read that ended, in the thread that read and that does little else."""
        thread = getattr(self._own, "thread", None)
        if thread is None:
            thread = self._own.thread = _Thread()
        # The first read of a thread counts what the thread did before it, which is little.
        busy_s = min(seconds, thread.begin())
        now = time.monotonic()
        with self._lock:
            self._threads.add(thread)
            for name in (dataset, ""):
                spent = self._spent.setdefault(name, _Spent(now))
                left = 0.5 ** ((now - spent.at) / _HALF_LIFE_S)
                spent.all_s = spent.all_s * left + seconds
                spent.busy_s = spent.busy_s * left + busy_s
                spent.at = now

    def decode_share(self, dataset: str) -> float:
        """Return the share of decoding in the reads of a dataset; of all if it is not known."""
        spent = self._spent.get(dataset) or self._spent.get("")
        if spent is None or not spent.all_s:
            return 0.0
        # Reads under way have decoded for so long, and else waited for no longer than others.
        running_s = self._running_s()
        return (spent.busy_s + running_s) / (spent.all_s + running_s)

    def _running_s(self) -> float:
        """Return how long the reads under way have worked, as of a moment ago."""
        at, seconds = self._running
        now = time.monotonic()
        if now - at >= _LOOK_S:
            with self._lock:
                threads = list(self._threads)
            seconds = sum(thread.so_far() for thread in threads)
            self._running = now, seconds
        return seconds


def shared_out(grown: Waits, behind_s: float, stalled_s: float) -> Waits:
    """Put the time since the last account down to its causes.

    Args:
        grown: What the stream waited for its store, and spent on decoding, by its own times.
        behind_s: How long it had nothing to send.
        stalled_s: How long the process got no processor, which made the other times longer.
    """
    known_s = grown.store_s + grown.decode_s
    kept = max(0.0, 1 - stalled_s / known_s) if known_s else 0.0
    store_s, decode_s = grown.store_s * kept, grown.decode_s * kept
    return Waits(store_s, decode_s, max(behind_s - store_s - decode_s, stalled_s))
