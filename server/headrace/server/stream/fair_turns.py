"""Take turns at making batches and at sending them, so that none of many streams is starved.

With 64 streams, each has a thread that asks for Python's lock whenever it has work. Chance decides
who gets it, and the slowest stream got two thirds of the fastest one's bytes
(tests/benchmarks/bench_many_ranks.py).

Contract:

1. At most ``count`` threads have a turn. The next turn goes to the caller whose turns have taken
   the least time, and within one caller to the stream that came first.
2. A caller that was away cannot claim the time that it did not use.
3. A turn is for work in memory. If it has to wait for a store after all (a page of a block table
   that is read on demand), others lose little: when no turn has ended for ``stuck_s``, whoever has
   waited longest takes an extra turn, and as many turns are given up when the long ones end.
4. A thread that may have to leave while it waits uses `queued`, which lends nothing.
5. While all streams belong to one caller, a message is sent as soon as it is made (`SendTurns`).
   Otherwise one message is on its way at a time, and the next one goes to the caller who was sent
   the fewest bytes.
6. A message that its client does not take within `_HOLD_S` gives its turn up, and goes out when it
   is taken. The stream then sends without turns until `_QUICK_MESSAGES` have gone out in that time,
   since it waits for its client and not for us: one that never reads costs others `_HOLD_S` once.
   What goes without a turn counts as if it had one.

The first is start-time fair queueing (Goyal, Vin and Cheng, 1996), with seconds as sizes. Without
the fifth 64 streams' threads and one of another caller go to gRPC and Python's lock with equal
chances, and the one had a third of its fair share of bytes (docs/decisions).

If the code differs, the code is wrong.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from headrace.server.steps.row_pool import RowPool

# Python runs one thread at a time, and another while that one copies; more than some find nothing
# to do (two measured, on two processors; four for larger machines is arbitrary).
_MOST = 4

# Making a batch takes milliseconds; the rest is for a machine that is short of processors.
_STUCK_S = 0.1

_HOLD_S = 0.005
"""Two MiB, the largest message, take 1 to 2 ms to a client of the same machine that reads."""

_QUICK_MESSAGES = 8
"""So that a client that is now and then waited for costs others little (arbitrary)."""

# No turn is stuck: each ends within `_HOLD_S`.
_NEVER_S = 3600.0


class Turns:
    """The turns that all callers share. Safe for several threads; `of` returns one caller's part.

    Args:
        count: How many may work at a time; as many as there are processors, and few, without it.
        stuck_s: How long no turn may end before an extra one is taken.
    """

    def __init__(self, count: int | None = None, *, stuck_s: float = _STUCK_S) -> None:
        self.stuck_s = stuck_s
        self._lock = threading.Lock()
        self._free = count or min(_MOST, os.cpu_count() or 1)
        self._lent = 0
        self._moved_at = time.monotonic()
        # The time used by the caller who got the last turn; a newcomer starts there.
        self._clock_s = 0.0
        self._callers: WeakValueDictionary[str, CallerTurns] = WeakValueDictionary()
        # Callers with a waiting thread, and no others.
        self._waiting: list[CallerTurns] = []

    @property
    def is_shared(self) -> bool:
        """Return whether more than one caller holds turns, used or not."""
        return len(self._callers) > 1

    def of(self, caller: str) -> CallerTurns:
        """Return the turns of a caller; all who hold them at the same time share one object."""
        with self._lock:
            found = self._callers.get(caller)
            if found is None:
                found = self._callers[caller] = CallerTurns(self)
            return found

    def take(self, mine: CallerTurns) -> threading.Lock | None:
        """Take a free turn, or return a place in the line, which is released with the turn."""
        with self._lock:
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

    def borrow(self, mine: CallerTurns, place: threading.Lock) -> bool:
        """Take an extra turn if none ends and nobody is ahead; return whether it was taken."""
        with self._lock:
            now = time.monotonic()
            if now - self._moved_at < self.stuck_s:
                return False
            if not mine.waiting or mine.waiting[0] is not place or self._first() is not mine:
                return False
            self._remove(mine, place)
            self._lent += 1
            self._moved_at = now
            return True

    def count(self, mine: CallerTurns, amount: float) -> None:
        """Count what a caller did without a turn, in the unit of `end`."""
        with self._lock:
            used = mine.used_s if mine.waiting else max(mine.used_s, self._clock_s)
            mine.used_s = used + amount

    def leave(self, mine: CallerTurns, place: threading.Lock) -> bool:
        """Give a place up; return False if it has become a turn meanwhile."""
        with self._lock:
            if place not in mine.waiting:
                return False
            self._remove(mine, place)
            return True

    def end(self, mine: CallerTurns, seconds: float, *, stayed_s: float) -> None:
        """Give up a turn.

        Args:
            mine: The turns of the caller who had it.
            seconds: How long it worked.
            stayed_s: How long the turn lasted, which may include a wait for a store.
        """
        with self._lock:
            self._moved_at = time.monotonic()
            mine.used_s += seconds
            if self._lent and stayed_s >= self.stuck_s:
                self._lent -= 1
            elif self._waiting:
                first = self._first()
                self._clock_s = max(self._clock_s, first.used_s)
                place = first.waiting[0]
                self._remove(first, place)
                place.release()
            else:
                self._free += 1
                self._clock_s = max(self._clock_s, mine.used_s - seconds)

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
        waiting: Who waits, in the order in which they came. Belongs to `Turns`, as what follows.
        used_s: Time of all its turns, in the time of `Turns`.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.waiting: deque[threading.Lock] = deque()
        self.used_s = 0.0

    def turn(self) -> Turn:
        """Return a context in which the caller has a turn; entering it waits for that."""
        return Turn(self)

    def begin(self) -> None:
        """Wait for a turn; `end` must follow."""
        place = self._turns.take(self)
        if place is None:
            return
        while not place.acquire(timeout=self._turns.stuck_s):
            if self._turns.borrow(self, place):
                return

    def queued(self) -> Generator[None, None, None]:
        """Wait for a turn, and yield now and then; `end` must follow unless this is closed."""
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
        """Give up a turn that took so long."""
        self._turns.end(self, seconds, stayed_s=seconds)

    def end_worked(self, amount: float) -> None:
        """Give up a turn in which nothing waited: seconds, or what else all its turns are sized by.

        Any thread may do so for the one that had it.
        """
        self._turns.end(self, amount, stayed_s=0.0)


@dataclass(frozen=True, slots=True)
class StreamTurns:
    """The turns of one stream's caller.

    Attributes:
        batches: Turns at making batches.
        steps: Turns at the steps of batches, which may take a second a row.
        rows: Works on the rows of images, and has turns of its own.
    """

    batches: CallerTurns
    steps: CallerTurns
    rows: RowPool


class Turn:
    """A turn, as a context. It is a class, because two generators a batch would cost 4 us."""

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
    """A call whose messages are sent."""

    @property
    def whose(self) -> str:
        """The caller."""

    @property
    def is_active(self) -> bool:
        """Whether somebody waits for more."""

    def send(self, message: bytes) -> bool:
        """Send a message, and wait until it is out; return whether more may follow."""

    def send_soon(self, message: bytes, on_sent: Callable[[], None]) -> bool:
        """Send a message; return False if nobody waits, else call ``on_sent`` when it is out."""


class SendTurns:
    """The sending turns of one server; safe for several threads. The contract is above.

    Args:
        hold_s: How long a message keeps its turn while its client does not take it.
    """

    def __init__(self, *, hold_s: float = _HOLD_S) -> None:
        self.hold_s = hold_s
        self._turns = Turns(1, stuck_s=_NEVER_S)

    def sender(self, call: Sent) -> Callable[[bytes], bool]:
        """Return a function that sends a message of a call, and returns whether more may follow.

        The call counts as one of its caller's streams for as long as the function is referred to.
        """
        return _Sender(self, self._turns, call)


class _Sender:
    """Sends the messages of one call, from one thread at a time."""

    __slots__ = ("_call", "_mine", "_quick_missing", "_rule", "_turns")

    def __init__(self, rule: SendTurns, turns: Turns, call: Sent) -> None:
        self._rule = rule
        self._turns = turns
        self._mine = turns.of(call.whose)
        self._call = call
        # How many messages in a row must go out quickly before the next one takes a turn.
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
    """A message that has a turn.

    Attributes:
        was_held: Whether its client did not take it in time.
    """

    __slots__ = ("_is_out", "_turn", "_turns", "_weight", "was_held")

    def __init__(self, turns: CallerTurns, weight: int) -> None:
        self._turns = turns
        self._weight = weight
        self.was_held = False
        # Each is let go by whoever comes first: the turn by the client or by the time.
        self._turn = threading.Lock()
        self._is_out = threading.Lock()
        self._is_out.acquire()

    def send(self, call: Sent, message: bytes, *, hold_s: float) -> bool:
        """Send it, and wait until it is out; return whether more may follow."""
        is_sent = False
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
        return call.is_active

    def _sent(self) -> None:
        # In the thread that serves all calls: the next one need not wait for this stream's thread.
        self._end_turn()
        self._is_out.release()

    def _end_turn(self) -> None:
        if self._turn.acquire(blocking=False):
            self._turns.end_worked(self._weight)
