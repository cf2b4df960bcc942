"""Attribute a loop's waiting time to hops: store, decode, server, network, client, copy, transform.

A reader is always in one phase: it waits for an answer, or it works on a hop. While a loop waits,
the seconds of the phases are what it waits for. A wait for an answer is put down to what its server
says that it did meanwhile, in heartbeats, and for as long as it says. Whatever no server accounts
for is the network's: a server that has something to send has nothing to say.

A wait that begins with a failure, and ends with the next batch, is put down to what failed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from operator import add, sub
from typing import Final, Literal, NamedTuple

Hop = Literal["store", "decode", "server", "network", "client", "copy", "transform", "rest"]
"""``rest`` means that the reader waits for the loop, or for nothing."""

_HOPS: Final = ("store", "decode", "server", "network", "client", "copy", "transform")
_RECENT_S: Final = 10.0
_SLICE_S: Final = 1.0
_SLICES: Final = 12
_LONG_S: Final = 0.02
"""Waits below this have no step: to find it costs some microseconds."""


class HopSeconds(NamedTuple):
    """Seconds by hop.

    Attributes:
        store: The server waited for its object store.
        decode: The server decoded blocks, or stages ran there.
        server: The server had no batch ready, for another reason, or was away.
        network: A connection was made, or bytes were on their way.
        client: This process assembled and verified batches.
        copy: Batches were copied to the device.
        transform: The function given as ``transform=`` was at work.
    """

    store: float = 0.0
    decode: float = 0.0
    server: float = 0.0
    network: float = 0.0
    client: float = 0.0
    copy: float = 0.0
    transform: float = 0.0

    def __add__(self, other: HopSeconds) -> HopSeconds:  # type: ignore[override] # sums, not rows
        return HopSeconds(*map(add, self, other))

    def __sub__(self, other: HopSeconds) -> HopSeconds:
        return HopSeconds(*map(sub, self, other))


class Recent(NamedTuple):
    """What a loop waited for in the last seconds.

    Attributes:
        seconds: How long ago they began.
        waited: The waits, by hop.
        step: The step of the batch that was waited for the longest; None if none was for long.
        step_s: How long it was waited for.
    """

    seconds: float
    waited: HopSeconds
    step: int | None
    step_s: float


class _Slice(NamedTuple):
    """What was known at some time, and the longest wait since the one before."""

    at: float
    waited: HopSeconds
    step: int | None
    step_s: float


class HopClock:
    """Adds up a reader's phases while a loop waits; thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Start idle, with nobody waiting.

        Args:
            now: Seconds of a clock that never goes back.
        """
        self._now = now
        self._lock = threading.Lock()
        self._waited: dict[str, float] = dict.fromkeys((*_HOPS, "rest", "answer"), 0.0)
        self._is_awaited = False
        self._hop: Hop | Literal["answer"] = "rest"
        self._since = now()
        # Where a wait for an answer belongs that no server accounts for; and what failed, for which
        # all waits count until the next batch.
        self._silent: Hop = "network"
        self._failed: Hop | None = None
        self._slices: deque[_Slice] = deque(maxlen=_SLICES)
        self._began = self._since
        self._step: int | None = None
        self._step_s = _LONG_S

    def enter(self, hop: Hop) -> None:
        """Note that the reader works on a hop, or waits for it, from now on."""
        self._enter(hop)

    def await_answer(self, silent: Hop = "network") -> None:
        """Note that the reader waits for a server from now on.

        Args:
            silent: What it waits for in time that the server does not account for.
        """
        self._silent = silent
        self._enter("answer")

    def _enter(self, hop: Hop | Literal["answer"]) -> None:
        with self._lock:
            if self._is_awaited:
                self._count()
            self._hop = hop

    def _count(self) -> float:
        now = self._now()
        self._waited[self._hop] += now - self._since
        self._since = now
        return now

    def account(self, *, store: float, decode: float, server: float) -> None:
        """Put the waits for answers so far down to what the server says that it did meanwhile.

        Args:
            store: Seconds in which it waited for its store.
            decode: Seconds in which it decoded, or ran stages.
            server: Seconds in which it had nothing to send for another reason.
        """
        with self._lock:
            if self._is_awaited:
                self._count()
            waited, said = self._waited["answer"], store + decode + server
            # The server may have had nothing to send while the loop had something to do.
            share = min(1.0, waited / said) if said else 0.0
            for hop, seconds in (("store", store), ("decode", decode), ("server", server)):
                self._waited[self._failed or hop] += seconds * share
            self._waited["answer"] = waited - said * share
            self._settle()

    def fail(self, hop: Hop) -> None:
        """Put the wait for an answer that did not come, and for the next batch, down to a hop."""
        with self._lock:
            if self._is_awaited:
                self._count()
            self._failed = self._failed or hop
            self._settle()

    @property
    def is_awaited(self) -> bool:
        """Whether a loop waits."""
        return self._is_awaited

    def suspect(self, hop: Hop) -> None:
        """Put down to a hop, until a server says more, what is waited for now."""
        self._silent = hop

    def fail_silent(self) -> None:
        """Put what is waited for now, up to the next batch, down to what is suspected."""
        self.fail(self._silent)

    def succeed(self) -> None:
        """Note that a batch came."""
        if self._failed is not None:
            with self._lock:
                self._settle()
                self._failed = None

    def _settle(self) -> None:
        """Put the wait for answers down to what it belongs to if no server accounts for it."""
        self._waited[self._failed or self._silent] += self._waited["answer"]
        self._waited["answer"] = 0.0

    def begin_wait(self) -> float:
        """Note that a loop starts to wait, and return the time."""
        with self._lock:
            self._is_awaited, self._since = True, self._now()
            return self._since

    def end_wait(self) -> float:
        """Note that the loop stops waiting, and return the time."""
        with self._lock:
            now = self._count()
            self._is_awaited = False
            last = self._slices[-1].at if self._slices else self._began
            if now - last >= _SLICE_S:
                self._slices.append(_Slice(now, self._so_far(), self._step, self._step_s))
                self._step, self._step_s = None, _LONG_S
            return now

    def note_wait(self, seconds: float, step: Callable[[], int | None]) -> None:
        """Note how long a batch was waited for; ``step`` is asked for if that was long."""
        if seconds > self._step_s:
            self._step, self._step_s = step(), seconds

    def waited(self) -> HopSeconds:
        """Return the seconds waited so far, by hop."""
        with self._lock:
            if self._is_awaited:
                self._count()
            return self._so_far()

    def _so_far(self) -> HopSeconds:
        seconds = dict(self._waited)
        seconds[self._failed or self._silent] += seconds["answer"]
        return HopSeconds(*(seconds[hop] for hop in _HOPS))

    def recent(self) -> Recent:
        """Return what was waited for in the last ten seconds, or since the reader began."""
        waited = self.waited()
        with self._lock:
            now = self._now()
            before = [each for each in self._slices if now - each.at >= _RECENT_S]
            after = [each for each in self._slices if now - each.at < _RECENT_S]
            start = before[-1] if before else _Slice(self._began, HopSeconds(), None, 0.0)
            latest = _Slice(now, waited, self._step, self._step_s)
            longest = max([*after, latest], key=lambda each: each.step_s)
            grown = waited - start.waited
            # Nothing was waited for since the last slice, if that was long ago.
            seconds = min(now - start.at, max(_RECENT_S, sum(grown)))
            return Recent(seconds, grown, longest.step, longest.step_s)
