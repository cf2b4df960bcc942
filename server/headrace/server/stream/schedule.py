"""Whose turn it is on a server's processors, and how far streams may read ahead of need.

Contract:

1. Callers take turns at making batches, at stages, at sending, and at questions that may take
   seconds. Each caller's requests are parsed, and what they read is found and set up, one at a
   time; while other callers have streams, for a part of the time, unless it is little work.
2. While other callers have streams, a question waits for `_REST` times as long as the one before
   took. The search for the samples that a filter keeps is a question, a part at a time.
3. While several callers have streams, a few of each caller's single batches are made and sent at a
   time.
4. A stream makes its next batch while it sends one only if a processor is free for it.
5. While other callers make batches, the rows of a caller's images and texts leave them a processor.
6. All streams together may prefetch a part of the cache.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from random import SystemRandom
from typing import Generic, TypeVar

from headrace.server.access.callers import Caller
from headrace.server.batch.row_pool import RowPool, allowed_processors
from headrace.server.cache.block_cache import BlockCache
from headrace.server.datasets.served import Served
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.batch_stream import StreamLimits
from headrace.server.stream.fair_turns import SendTurns, StreamTurns, Turns
from headrace.server.stream.open_streams import OpenStreams

# So that streams opened together do not end together.
_LIFETIME_JITTER = 0.2

# All streams together may prefetch this part of the cache. With a cache of `shuffle_bytes`, a
# shuffle of small samples needs 17 of 18.5 parts at a time and fetches one more; prefetching beyond
# that would evict blocks that are still needed.
_PREFETCH_SHARE = 20
# And this part while less than half of the cache is in use, since nothing is evicted then.
_EARLY_PREFETCH_SHARE = 4

_PROCESSORS = os.cpu_count() or 1

# Stages leave one processor to streams without stages, and so do long questions: two streams that
# decode images on two processors cut the rate of another caller to less than half (tests/attacks).
_STAGES_AT_ONCE = max(1, min(4, _PROCESSORS - 1))

# Without rests, one long question after the other left another caller 0.38 of its rate on two
# processors (tests/attacks/a25), and with rests once as long 0.48.
_REST = 3
# How often a question that waits looks whether others have streams (arbitrary).
_LOOK_S = 0.1


# Requests have a processor for one part of the time in this many and one more.
# With rests once as long, requests for mixtures of 10,000 datasets left another caller 0.42 of its
# rate on two processors (tests/attacks/a37); without turns and rests 0.02.
_SETUP_REST = 2
# What a stream costs besides: in gRPC's threads, for its batches, and for its end. A herd took 0.9
# of a processor for 140 short streams a second and 115 refusals (tests/attacks/a07).
_STREAM_S = 0.005
# The rests that a caller may save up. A caller that opens a stream now and then does not rest.
_SAVED_S = 0.05

# A caller whose turns are forgotten gets new ones; the bound is arbitrary.
_MOST_CALLERS = 4096

# Opening an old version in a slow store takes longer, and keeps others of its caller waiting.
_STUCK_SETUP_S = 1.0


@dataclass(slots=True)
class _Setups:
    """The turns of one caller's calls before their first batch, and when the next may begin."""

    turns: Turns = field(default_factory=lambda: Turns(1, stuck_s=_STUCK_SETUP_S))
    rests_until: float = 0.0

    def charge(self, seconds: float, since: float) -> None:
        """Let the caller rest for processor time that it has used since then."""
        self.rests_until = max(self.rests_until, since) + (1 + _SETUP_REST) * seconds


_Kept = TypeVar("_Kept")


class _ByCaller(Generic[_Kept]):
    """One object for each of the callers that came last; thread-safe.

    Without tokens, callers are addresses, of which there may be any number.

    Args:
        make: Makes one.
    """

    def __init__(self, make: Callable[[], _Kept]) -> None:
        self._kept = lru_cache(_MOST_CALLERS)(lambda _: make())
        self._lock = threading.Lock()

    def of(self, caller: str) -> _Kept:
        """Return that of a caller."""
        with self._lock:
            return self._kept(caller)


class Schedule:
    """The turns and shares of one server's streams and questions; thread-safe.

    Args:
        config: The server's settings.
        cache: The cache that streams read.
        streams: The server's open streams.

    Attributes:
        sender: See `SendTurns.sender`.
    """

    def __init__(self, config: ServerConfig, *, cache: BlockCache, streams: OpenStreams) -> None:
        self._config = config
        self._cache = cache
        self._streams = streams
        self._turns = Turns()
        self._rows = RowPool(config.stage_threads or allowed_processors(), self._turns.is_alone)
        self._stage_turns = Turns(_STAGES_AT_ONCE)
        # Not those of stages, whose turns take milliseconds.
        self._question_turns = Turns(_STAGES_AT_ONCE)
        # By caller; see `single_turn` and `setup_turn`.
        self._single_turns = _ByCaller(lambda: Turns(_STAGES_AT_ONCE))
        self._setups = _ByCaller(_Setups)
        # By `time.monotonic`; see `question_turn`.
        self._rests_until = 0.0
        self.sender = SendTurns().sender

    def close(self) -> None:
        """End the threads that work on rows of batches."""
        self._rows.close()

    @contextmanager
    def setup_turn(self, caller: str) -> Iterator[None]:
        """Wait for a turn at what a call does before its first batch, and hold it.

        It runs under Python's lock; with a mixture of 10,000 datasets, for a tenth of a second.
        """
        setups = self._setups.of(caller)
        with setups.turns.of(caller).turn():
            left_s = setups.rests_until - _SAVED_S - time.monotonic()
            if left_s > 0 and self._streams.are_others_here(caller):
                time.sleep(left_s)
            thread, began, since = threading.get_ident(), time.thread_time(), time.monotonic()
            try:
                yield
            finally:
                # Another thread ends it where the store is waited for.
                is_here = thread == threading.get_ident()
                self._charge(caller, time.thread_time() - began if is_here else 0.0, since)

    def charge_stream(self, caller: str) -> None:
        """Count what a stream of a caller will take besides the turn that it has."""
        self._charge(caller, _STREAM_S, time.monotonic())

    def _charge(self, caller: str, seconds: float, since: float) -> None:
        # Who is alone does not rest, so it must not owe rests when somebody comes.
        if self._streams.are_others_here(caller):
            self._setups.of(caller).charge(seconds, since)

    @contextmanager
    def question_turn(self, caller: str) -> Iterator[None]:
        """Wait for a turn of questions that may take seconds, and hold it."""
        turns = self._question_turns.of(caller)
        for _ in turns.queued():
            pass
        while (left_s := self._rests_until - time.monotonic()) > 0:
            if not self._streams.are_others_here(caller):
                break
            time.sleep(min(left_s, _LOOK_S))
        began = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            self._rests_until = now + _REST * (now - began)
            turns.end_worked(now - began)

    def single_turn(self, caller: Caller) -> AbstractContextManager[object]:
        """Wait for a turn of single batches if other callers have streams, and hold it.

        A few threads make and send the single batches of each caller then, since 16 large ones at a
        time left another caller 0.31 of its rate. A batch that waits for the store gives up its
        turn, and one whose client does not read it costs the next one a moment.
        """
        if not self._streams.are_others_here(caller.name):
            return nullcontext()
        return self._single_turns.of(caller.name).of(caller.name).turn()

    def turns(self, caller: Caller, on_store_wait: Callable[[], None]) -> StreamTurns:
        """Return the turns of one stream.

        Args:
            caller: Its caller.
            on_store_wait: Called when it waits for the store.
        """
        return StreamTurns(
            self._turns.of(caller.name),
            self._stage_turns.of(caller.name),
            self._rows,
            on_store_wait=on_store_wait,
        )

    def is_processor_free(self, caller: Caller) -> bool:
        """Return whether a stream's next batch may be made while it sends one."""
        # With more streams than processors, all processors are busy anyway, and second threads only
        # cost: with 64 streams on two processors, a fifth of the server's processor time. Streams
        # with a second thread also get more than others, early streams a third more. But each
        # caller has its share of the processors, however many streams others have.
        streams = self._streams
        return streams.count <= _PROCESSORS or streams.are_within_share(caller, _PROCESSORS)

    def limits(self, served: Served) -> StreamLimits:
        """Return the limits of one stream."""
        config = self._config
        jitter = SystemRandom().uniform(1 - _LIFETIME_JITTER, 1 + _LIFETIME_JITTER)
        return StreamLimits(
            heartbeat_s=config.heartbeat_s,
            store_timeout_s=config.store_timeout_s,
            stage_timeout_s=config.stage_timeout_s,
            lifetime_s=config.max_stream_s * jitter,
            max_batch_bytes=config.max_batch_bytes,
            prefetch_bytes=lambda: self._prefetch_bytes(served),
            spare_bytes=self._spare_bytes,
        )

    def _spare_bytes(self) -> int:
        spare_bytes = self._cache.needs.spare_bytes(self._cache.budget_bytes)
        return min(spare_bytes, self._config.prefetch_bytes)

    def _prefetch_bytes(self, served: Served) -> int:
        memory_bytes = max(1, served.memory_bytes)
        is_filling = self._cache.readers.filling.is_filling
        part = _PREFETCH_SHARE if is_filling else _EARLY_PREFETCH_SHARE
        share = self._config.cache_bytes // (part * max(1, self._streams.count))
        stored_share = share * served.dataset.stored_bytes // memory_bytes
        return min(self._config.prefetch_bytes, stored_share)
