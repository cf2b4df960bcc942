"""Take turns at making and sending batches, so that no stream is starved.

With 64 streams, 64 threads compete for Python's lock. Chance decides which of them gets it, and the
slowest stream got two thirds of the fastest one's bytes (tests/benchmarks/bench_many_ranks.py).

Contract:

1. At most ``count`` threads have a turn. The next turn goes to the caller whose turns have taken
   the least time, and among the streams of a caller to the one that came first.
2. A caller that was away cannot claim the time that it did not use.
3. A turn is for work in memory. If a turn has to wait for a store after all (for a page of a block
   table that is read on demand), others lose little: when no turn has ended for ``stuck_s``, the
   thread that is next gets an extra turn, and an equal number of turns is given up when the long
   ones end.
4. A thread that may have to leave while it waits uses `queued`, which takes no extra turns.
5. While all streams belong to one caller, a message is sent as soon as it is made (`SendTurns`).
   Otherwise one message is sent at a time, and the next one belongs to the caller that was sent the
   fewest bytes.
6. A message that its client does not read within `_HOLD_S` gives up its turn. The stream then sends
   without turns until `_QUICK_MESSAGES` have been sent in that time, because it waits for its
   client and not for the server. So a client that never reads costs others `_HOLD_S` once.
   Messages without a turn count like those with one.

Rule 1 is start-time fair queueing (Goyal, Vin and Cheng, 1996), with seconds as sizes. Without rule
5, the threads of 64 streams and one of another caller get gRPC and Python's lock with equal
chances, and the single stream had a third of its fair share of bytes (docs/decisions).

If the code differs, the code is wrong.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from headrace.server.batch.row_pool import RowPool

# Python runs one thread at a time, and another one while the first copies; more threads find
# nothing to do (two is measured on two processors; four for larger machines is arbitrary).
_MOST = 4

# Making a batch takes milliseconds; the rest is for machines that are short of processors.
_STUCK_S = 0.1

_HOLD_S = 0.005
"""Sending 2 MiB, the largest message, takes 1 to 2 ms to a reading client on the same machine."""

_QUICK_MESSAGES = 8
"""So that a client that is slow now and then costs others little (arbitrary)."""

_BUSY_S = 0.1
"""Batches of a stream that waits for the server are closer together (arbitrary)."""

# With a tenth of that, 512 waiting threads would look 5,000 times a second.
_LOOK_S = 1.0

# Sending turns cannot get stuck, because each ends within `_HOLD_S`.
_NEVER_S = 3600.0


class Turns:
    """The turns that all callers share; thread-safe. `of` returns the turns of one caller.

    Args:
        count: How many threads may have a turn; None for the number of processors, at most four.
        stuck_s: The time without the end of a turn after which an extra turn is taken.
    """

    def __init__(self, count: int | None = None, *, stuck_s: float = _STUCK_S) -> None:
        self.stuck_s = stuck_s
        self._lock = threading.Lock()
        self._free = count or min(_MOST, os.cpu_count() or 1)
        self._lent = 0
        self._moved_at = time.monotonic()
        # The used time of the caller that got the last turn, from which a new caller starts.
        self._clock_s = 0.0
        self._callers: WeakValueDictionary[str, CallerTurns] = WeakValueDictionary()
        # Who asked for a turn last, and who did of the others, with the times.
        self._latest = self._before = ("", -math.inf)
        # Only the callers with a waiting thread.
        self._waiting: list[CallerTurns] = []

    @property
    def is_shared(self) -> bool:
        """Whether more than one caller holds turns, used or not."""
        return len(self._callers) > 1

    def is_alone(self, caller: object) -> bool:
        """Return whether no other caller has asked for a turn a moment ago."""
        _, at = self._latest if self._latest[0] != caller else self._before
        return time.monotonic() - at >= _BUSY_S

    def of(self, caller: str) -> CallerTurns:
        """Return the turns of a caller; all its current users share one object."""
        with self._lock:
            found = self._callers.get(caller)
            if found is None:
                found = self._callers[caller] = CallerTurns(self, caller)
            return found

    def take(self, mine: CallerTurns) -> threading.Lock | None:
        """Take a free turn, or return a place in the line: a lock that is released for the turn."""
        with self._lock:
            if self._latest[0] != mine.name:
                self._before = self._latest
            self._latest = (mine.name, time.monotonic())
            if not mine.waiting:
                mine.used_s = max(mine.used_s, self._clock_s)
                if self._free:
                    self._free -= 1
                    return None
                self._waiting.append(mine)
            place = threading.Lock()
            place.acquire()
            mine.waiting.append(place)
            return place

    def lend(self) -> None:
        """Give an extra turn to the thread that is next, if turns are stuck."""
        # Without the lock at first: hundreds of threads may ask for nothing.
        if time.monotonic() - self._moved_at < self.stuck_s:
            return
        with self._lock:
            now = time.monotonic()
            if now - self._moved_at >= self.stuck_s and self._waiting:
                self._lent += 1
                self._moved_at = now
                self._give()

    def count(self, mine: CallerTurns, amount: float) -> None:
        """Count work that a caller did without a turn, in the unit of `end`."""
        with self._lock:
            used = mine.used_s if mine.waiting else max(mine.used_s, self._clock_s)
            mine.used_s = used + amount
            if not self._waiting:
                self._clock_s = max(self._clock_s, used)

    def leave(self, mine: CallerTurns, place: threading.Lock) -> bool:
        """Give up a place; return False if it has become a turn meanwhile."""
        with self._lock:
            if place not in mine.waiting:
                return False
            self._remove(mine, place)
            return True

    def end(self, mine: CallerTurns, seconds: float, *, stayed_s: float) -> None:
        """Give up a turn.

        Args:
            mine: The turns of its caller.
            seconds: How long the thread worked.
            stayed_s: How long the turn lasted, including any wait for a store.
        """
        with self._lock:
            self._moved_at = time.monotonic()
            mine.used_s += seconds
            if self._lent and stayed_s >= self.stuck_s:
                self._lent -= 1
            elif self._waiting:
                self._clock_s = max(self._clock_s, self._first().used_s)
                self._give()
            else:
                self._free += 1
                self._clock_s = max(self._clock_s, mine.used_s - seconds)

    def _give(self) -> None:
        first = self._first()
        place = first.waiting[0]
        self._remove(first, place)
        place.release()

    def _first(self) -> CallerTurns:
        if len(self._waiting) == 1:
            return self._waiting[0]
        return min(self._waiting, key=lambda caller: caller.used_s)

    def _remove(self, mine: CallerTurns, place: threading.Lock) -> None:
        mine.waiting.remove(place)
        if not mine.waiting:
            self._waiting.remove(mine)


class CallerTurns:
    """The turns of one caller's streams; `Turns.of` makes them.

    Attributes:
        name: The caller.
        waiting: The waiting threads, in the order of arrival. Only `Turns` uses it.
        used_s: The time of all turns, in the time of `Turns`. Only `Turns` uses it.
    """

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns = turns
        self.name = name
        self.waiting: deque[threading.Lock] = deque()
        self.used_s = 0.0

    def turn(self) -> Turn:
        """Return a context manager that waits for a turn and holds it."""
        return Turn(self)

    def begin(self) -> None:
        """Wait for a turn; `end` must follow."""
        place = self._turns.take(self)
        if place is None:
            return
        # All look whether turns are stuck, each more rarely the more they are.
        stuck_s = self._turns.stuck_s
        look_s = max(stuck_s, min(_LOOK_S, stuck_s * len(self.waiting)))
        while not place.acquire(timeout=look_s):
            self._turns.lend()

    def queued(self) -> Generator[None, None, None]:
        """Wait for a turn, and yield periodically; `end` must follow unless this is closed."""
        place = self._turns.take(self)
        if place is None:
            return
        try:
            while not place.acquire(timeout=self._turns.stuck_s):
                yield
        except GeneratorExit:
            if not self._turns.leave(self, place):
                self._turns.end(self, 0.0, stayed_s=0.0)
            raise

    def end(self, seconds: float) -> None:
        """Give up a turn that took ``seconds``."""
        self._turns.end(self, seconds, stayed_s=seconds)

    def end_worked(self, amount: float) -> None:
        """Give up a turn without waits; ``amount`` is seconds, or another unit for all turns.

        Any thread may call it on behalf of the one that has the turn.
        """
        self._turns.end(self, amount, stayed_s=0.0)


@dataclass(frozen=True, slots=True)
class StreamTurns:
    """The turns of one stream's caller.

    Attributes:
        batches: Turns for making batches.
        stages: Turns for stages, which may take a second for each row.
        rows: The workers for rows of images, with their own turns.
        on_store_wait: Called when a batch begins to wait for the store.
    """

    batches: CallerTurns
    stages: CallerTurns
    rows: RowPool
    on_store_wait: Callable[[], None] = lambda: None


class Turn:
    """A turn as a context manager; a class, because two generators a batch would cost 4 us."""

    __slots__ = ("_began", "_turns")

    def __init__(self, turns: CallerTurns) -> None:
        self._turns = turns
        self._began = 0.0

    def __enter__(self) -> None:
        self._turns.begin()
        self._began = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._turns.end(time.monotonic() - self._began)


class Sent(Protocol):
    """A call that sends messages."""

    @property
    def line(self) -> str:
        """The caller."""

    @property
    def is_active(self) -> bool:
        """Whether the client waits for more."""

    def send(self, message: bytes) -> bool:
        """Send a message and wait until it is sent; return whether more may follow."""

    def send_soon(self, message: bytes, on_sent: Callable[[], None]) -> bool:
        """Send a message, and call ``on_sent`` when it is sent; return False if nobody waits."""


class SendTurns:
    """The sending turns of one server; thread-safe. The contract is above.

    Args:
        hold_s: How long a message keeps its turn while its client does not read it.
    """

    def __init__(self, *, hold_s: float = _HOLD_S) -> None:
        self.hold_s = hold_s
        self._turns = Turns(1, stuck_s=_NEVER_S)

    def sender(self, call: Sent) -> Callable[[bytes], bool]:
        """Return a function that sends a message of a call and returns whether more may follow.

        The call counts as one of its caller's streams as long as the function exists.
        """
        return _Sender(self, self._turns, call)


class _Sender:
    """Sends the messages of one call; not thread-safe."""

    __slots__ = ("_call", "_mine", "_quick_missing", "_rule", "_turns")

    def __init__(self, rule: SendTurns, turns: Turns, call: Sent) -> None:
        self._rule = rule
        self._turns = turns
        self._mine = turns.of(call.line)
        self._call = call
        # How many messages in a row must be sent quickly before the next one takes a turn.
        self._quick_missing = 0

    def __call__(self, message: bytes) -> bool:
        if not self._turns.is_shared:
            return self._call.send(message)
        size = len(message)
        if self._quick_missing:
            self._turns.count(self._mine, size)
            return self._send_slow(message)
        self._mine.begin()
        sending = _Sending(self._mine, size)
        may_follow = sending.send(self._call, message, hold_s=self._rule.hold_s)
        if sending.was_held:
            self._quick_missing = _QUICK_MESSAGES
        return may_follow

    def _send_slow(self, message: bytes) -> bool:
        began = time.monotonic()
        may_follow = self._call.send(message)
        is_quick = time.monotonic() - began < self._rule.hold_s
        self._quick_missing = self._quick_missing - 1 if is_quick else _QUICK_MESSAGES
        return may_follow


class _Sending:
    """A message with a turn.

    Attributes:
        was_held: Whether its client did not read it in time.
    """

    __slots__ = ("_is_out", "_turn", "_turns", "_weight", "was_held")

    def __init__(self, turns: CallerTurns, weight: int) -> None:
        self._turns = turns
        self._weight = weight
        self.was_held = False
        # The turn is ended either by the client or after the time, whichever comes first.
        self._turn = threading.Lock()
        self._is_out = threading.Lock()
        self._is_out.acquire()

    def send(self, call: Sent, message: bytes, *, hold_s: float) -> bool:
        """Send the message and wait until it is sent; return whether more may follow."""
        is_sent, began = False, time.monotonic()
        try:
            is_sent = call.send_soon(message, self._sent)
        finally:
            if not is_sent:
                self._end_turn()
        if not is_sent:
            return False
        if not self._is_out.acquire(timeout=hold_s):
            self.was_held = True
            self._end_turn()
            self._is_out.acquire()
        # A call may send in this thread, and say that its turn is over before the message is out.
        self.was_held |= time.monotonic() - began >= hold_s
        return call.is_active

    def _sent(self) -> None:
        # In the thread that serves all calls, so the next turn need not wait for this stream's.
        self._end_turn()
        self._is_out.release()

    def _end_turn(self) -> None:
        if self._turn.acquire(blocking=False):
            self._turns.end_worked(self._weight)
