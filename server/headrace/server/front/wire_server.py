"""gRPC's server as this package uses it: one thread takes all events from one queue.

Contract:

1. A call is looked at as soon as gRPC delivers it, which costs little even for very many. It then
   waits in its caller's line, and nothing is done for it until the callers before it have had a
   turn (`Lines`). Strangers, whom the server does not know, wait until no known caller does.
2. At most ``most`` calls of known callers wait, and at most half of them belong to one caller. The
   receiver of one more call learns that there is no room. Of strangers at most `_MOST_STRANGERS`
   wait, at most half of them of one network, and more are dropped; `_MOST_RUNNING` run at a time,
   and `_MOST_OF_NETWORK` of one network; one has its turn in `_TURN_S`.
3. Events of running calls come before the turns of waiting ones, except for one turn in
   `_EVENTS_A_TURN` events. After turns, this thread rests for twice the time that they took, so
   that threads that make batches get Python's lock.
4. gRPC may deliver `_LOOKS` calls of each method at a time, so this many are looked at in each
   round of the event queue. Many calls of one method delay a call of another method by at most
   that, and a call of the same method by a look each.
5. `stop` accepts no more calls, and drops strangers that wait; running calls may continue for a
   while and are then cut. The thread ends with the last of them.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from headrace.server.front.lines import Lines
from headrace.server.front.wire import Receiver, WireCall, check_parts

_MOST_IN_LINES = 16_384
"""Arbitrary; each call takes about 10 KiB until it has its turn."""

_MOST_STRANGERS, _MOST_RUNNING, _MOST_OF_NETWORK = 4096, 64, 16
"""Arbitrary. A waiting call takes about 10 KiB and nothing else, and who waits for an answer asks
less often the longer it waits, so calls wait rather than being cut."""

_TURN_S = 0.005
"""Two hundred calls a second take less than a twentieth of a processor."""

_LOOKS = 32
"""With one, a burst of 1,500 calls would take 1,500 rounds of the event queue."""

_EVENTS_A_TURN = 4

_WORK_S, _REST = 0.002, 2.0
"""After `_WORK_S` of turns, this thread rests `_REST` times as long. While it has work, it releases
Python's lock only for moments, and other threads get the lock once in 5 ms (sys.getswitchinterval).
Without rests, 1,500 simultaneous calls kept all other streams from making a batch for 1 to 2 s."""

_WAIT_S = 0.25
_SHUTDOWN = object()
_UNKNOWN = ""

_log = logging.getLogger(__name__)


class Arrival(Receiver, Protocol):
    """The receiver of a call that may have to wait for a turn, or find no room to wait."""

    @property
    def is_known(self) -> bool:
        """Whether the call's caller is known."""

    def no_room(self) -> None:
        """Prepare to report that there is no room; the call has its turn at once."""


_Waiting = tuple[WireCall, Arrival]

Arrivals = Mapping[str, Callable[[WireCall], Arrival]]
"""Functions that make the receivers of calls, by the full names of methods."""


class WireServer:
    """Serves methods; thread-safe.

    Args:
        methods: The methods by their full names, such as ``/package.Service/Method``; the empty
            name stands for all others.
        options: Options of gRPC.
        most: The most calls in the lines of known callers.
    """

    def __init__(
        self,
        methods: Arrivals,
        options: Sequence[tuple[str, int]],
        *,
        most: int = _MOST_IN_LINES,
    ) -> None:
        check_parts()
        self._methods = methods
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(tuple(options), False)
        self._server.register_completion_queue(self._queue)
        for name in filter(None, methods):
            self._server.register_method(name)
        self._known: Lines[_Waiting] = Lines(most=most)
        self._strangers: Lines[_Waiting] = Lines(
            most=_MOST_STRANGERS,
            most_running=_MOST_RUNNING,
            most_of_caller=_MOST_OF_NETWORK,
            turn_s=_TURN_S,
        )
        # Used by the serving thread: calls that gRPC was asked for, running calls, calls that have
        # ended, events that were taken, and whether no connection is left.
        self._asked = self._calls = self._ended = self._handled = 0
        self._is_shut = False
        self._worked_s = self._rests_until = 0.0
        self._lock = threading.Lock()
        self._is_stopping = False
        self._cut_at: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="headrace-calls", daemon=True)

    def add_insecure_port(self, address: str) -> int:
        """Listen without TLS; return the port, 1 for a unix socket, or 0 on failure."""
        return int(self._server.add_http2_port(address.encode()))

    def add_secure_port(self, address: str, credentials: grpc.ServerCredentials) -> int:
        """Listen with TLS; return the port, or 0 on failure."""
        known: Any = credentials
        return int(self._server.add_http2_port(address.encode(), known._credentials))  # noqa: SLF001 - as gRPC's own server does

    @property
    def ended_count(self) -> int:
        """Number of calls that have had their turn and have ended."""
        return self._ended

    def start(self) -> None:
        """Start to take calls."""
        self._server.start()
        with self._lock:
            for name in self._methods:
                for _ in range(_LOOKS):
                    self._ask_for(name)
        self._thread.start()

    def stop(self, grace_s: float) -> threading.Event:
        """Take no more calls, and cut running ones after ``grace_s``.

        Returns:
            An event that is set when all calls have ended.
        """
        if self._thread.ident is None:
            self._over.set()
            return self._over
        cut_at = time.monotonic() + grace_s
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                self._server.shutdown(self._queue, _SHUTDOWN)
            self._cut_at = cut_at if self._cut_at is None else min(cut_at, self._cut_at)
            if grace_s <= 0 and not self._over.is_set():
                self._server.cancel_all_calls()
        return self._over

    def _serve(self) -> None:
        while not self._is_over():
            self._guarded(self._serve_once)
        with self._lock:
            self._server.destroy()
            self._over.set()

    def _serve_once(self) -> None:
        """Take an event, if there is one in time, and give a turn."""
        if self._is_stopping:
            self._strangers.clear()
            self._cut_late()
        event = self._queue.poll(time.time() + self._wait_s())
        is_event = event.completion_type != cygrpc.CompletionType.queue_timeout
        if is_event:
            self._handled += 1
            self._guarded(self._take, event)
        # Deleted before the next poll: it may hold the last reference to a finished call.
        del event
        if not (is_event and self._handled % _EVENTS_A_TURN):
            self._give_turn()

    def _wait_s(self) -> float:
        """Return how long to wait for an event, in seconds."""
        now = time.monotonic()
        turn_s = min(self._known.wait_s(now), self._strangers.wait_s(now))
        return min(_WAIT_S, max(turn_s, self._rests_until - now))

    def _give_turn(self) -> None:
        """Continue the next waiting call, unless this thread is to rest."""
        began = time.monotonic()
        if began < self._rests_until:
            return
        lines = self._known or self._strangers
        if (found := lines.pop(began)) is None:
            return
        caller, (call, arrival) = found
        self._guarded(self._serve_call, call, arrival, partial(lines.ended, caller))
        now = time.monotonic()
        self._worked_s += now - began
        if self._worked_s >= _WORK_S:
            self._rests_until, self._worked_s = now + _REST * self._worked_s, 0.0

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException:  # noqa: BLE001 - nothing may end the thread of all calls
            _log.exception("a call failed where none should; this is a bug of headrace")

    def _take(self, event: Any) -> None:
        tag = event.tag
        if callable(tag):
            tag(event)
        elif tag is _SHUTDOWN:
            self._is_shut = True
        else:
            self._asked -= 1
            with self._lock:
                if not self._is_stopping:
                    self._ask_for(tag)
            if event.success:
                self._look(event)

    def _look(self, event: Any) -> None:
        call = WireCall(event)
        arrival = self._methods[event.tag](call)
        lines = self._known if arrival.is_known else self._strangers
        if not lines.append(arrival.line, (call, arrival)) and arrival.is_known:
            arrival.no_room()
            self._serve_call(call, arrival, lambda: None)

    def _serve_call(self, call: WireCall, arrival: Arrival, on_over: Callable[[], None]) -> None:
        self._calls += 1

        def over() -> None:
            self._calls -= 1
            self._ended += 1
            on_over()

        call.serve(arrival, over)

    def _ask_for(self, method: str) -> None:
        """Ask gRPC for a call of a method."""
        if method == _UNKNOWN:
            self._server.request_call(self._queue, self._queue, method)
        else:
            self._server.request_registered_call(self._queue, self._queue, method, method)
        self._asked += 1

    def _cut_late(self) -> None:
        if self._cut_at is not None and time.monotonic() >= self._cut_at:
            self._server.cancel_all_calls()
            self._cut_at += _WAIT_S

    def _is_over(self) -> bool:
        return self._is_shut and not (self._asked or self._calls or self._known)
