"""Ask a second server for a late batch, and take whichever answer comes first.

Contract of `HedgedFeed.events`, in addition to that of `Feed`:

1. A hedge starts when a batch is later than most were, and than ``least_s``, and the budget has one
   left; never more than one at a time.
2. Stream and hedge compete: the first to have the whole batch wins, under a lock. The other is
   cancelled, and what it still brings is dropped. So each batch comes out once.
3. If the hedge wins, its batch is the last event of this feed, and ``winner`` is its server: the
   caller continues there, from the token of that batch.
4. A hedge that fails changes nothing: the feed waits for the stream.
5. At the end of the context the hedge is cancelled and its thread joined.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.client.feeds.feed import Event, Feed
from headrace.client.options.settings import Hedge
from headrace.client.reader.get_batch import SingleBatch
from headrace.client.servers.endpoints import Endpoint
from headrace.client.wire.assembler import BatchEvent
from headrace.errors import HeadraceError
from headrace.order import decode_token

_log = logging.getLogger(__name__)

_REMEMBERED = 256
"""Number of waits that the percentile is computed from. Arbitrary."""

_MOST_SAVED = 2.0
"""Most extra requests that the budget saves up, to prevent bursts. Arbitrary."""

Ask = Callable[[Endpoint, bytes], SingleBatch]
"""Prepares to get the batch after a token from a server."""


class _StreamEnd:
    """The stream has ended."""


_ENDED = _StreamEnd()


@dataclass(slots=True)
class HedgeCounts:
    """Counts of hedges.

    Attributes:
        asked: Batches that were requested from a second server.
        won: Batches that came from the second server first.
    """

    asked: int = 0
    won: int = 0


class Lateness:
    """When a batch counts as late, and whether another request is allowed; one for all streams."""

    def __init__(self, hedge: Hedge) -> None:
        """Start without measurements and with a budget of one request."""
        self._hedge = hedge
        self._waits: deque[float] = deque(maxlen=_REMEMBERED)
        self._saved = 1.0
        self.counts = HedgeCounts()

    def note(self, wait_s: float) -> None:
        """Remember how long a batch took."""
        self._waits.append(wait_s)
        self._saved = min(_MOST_SAVED, self._saved + self._hedge.budget)

    def limit_s(self) -> float:
        """Return the seconds after which a batch is late."""
        waits = sorted(self._waits)
        if not waits:
            return self._hedge.least_s
        place = min(len(waits) - 1, int(self._hedge.percentile * len(waits)))
        return max(self._hedge.least_s, waits[place])

    def spend(self) -> bool:
        """Take a request from the budget; return whether there was one."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


class HedgedFeed:
    """A feed that asks another server for late batches."""

    def __init__(
        self,
        feed: Feed,
        lateness: Lateness,
        *,
        token: bytes | None,
        end_epoch: int | None,
        other: Callable[[], Endpoint | None],
        ask: Ask,
    ) -> None:
        """Wrap a feed that was just opened.

        Args:
            feed: The stream.
            lateness: When to ask.
            token: Where the stream starts; None for no hedge before its first batch.
            end_epoch: First epoch not to read, or None.
            other: Returns another server, or None.
            ask: Gets batches from the other server.
        """
        self._feed, self._lateness = feed, lateness
        self._other, self._ask = other, ask
        self._changed = threading.Condition()
        self._after: Event | bytes | None = token
        self._end_epoch = end_epoch
        self._since: float | None = None
        self._number = 0
        self._hedge: SingleBatch | None = None
        self._won: BatchEvent | None = None
        self._is_done = False
        self.winner: Endpoint | None = None

    def events(self) -> Generator[Event | None, None, None]:
        """Yield the events; the module docstring holds the contract."""
        source = self._feed.events()
        self._begin_wait()
        while True:
            try:
                event = next(source, _ENDED)
            except HeadraceError:
                won = self._end_wait(_ENDED)
                if won is None:
                    raise
                yield won
                return
            if event is None:
                yield None
                continue
            won = self._end_wait(event)
            if won is not None:
                yield won
                return
            if isinstance(event, _StreamEnd):
                return
            yield event
            self._begin_wait()

    def cancel(self) -> None:
        """End stream and hedge."""
        with self._changed:
            self._is_done = True
            self._changed.notify_all()
            if self._hedge is not None:
                self._hedge.cancel()
        self._feed.cancel()

    def run(self) -> None:
        """Watch for late batches until the feed is cancelled; for a thread of its own."""
        while (late := self._next_late()) is not None:
            number, token = late
            endpoint = self._other()
            if endpoint is None or not self._start(number, endpoint, token):
                continue
            batch = self._fetch(endpoint)
            if batch is not None and self._win(number, batch, endpoint):
                self._feed.cancel()

    def _begin_wait(self) -> None:
        with self._changed:
            self._since = time.monotonic()
            self._number += 1

    def _end_wait(self, event: Event | _StreamEnd) -> BatchEvent | None:
        """Return the batch of a hedge that won; otherwise cancel the hedge and return None."""
        with self._changed:
            since, self._since = self._since, None
            if self._won is not None:
                return self._won
            if self._hedge is not None:
                self._hedge.cancel()
            if since is not None and not isinstance(event, _StreamEnd):
                self._lateness.note(time.monotonic() - since)
                self._after = event
        return None

    def _next_late(self) -> tuple[int, bytes] | None:
        """Wait for a late batch that may be hedged."""
        with self._changed:
            refused = -1
            while not self._is_done:
                number, left_s = self._number, self._lateness.limit_s()
                if self._since is not None and number != refused:
                    left_s += self._since - time.monotonic()
                    if left_s <= 0:
                        token = _token_after(self._after, end_epoch=self._end_epoch)
                        if token is not None and self._lateness.spend():
                            return number, token
                        refused, left_s = number, self._lateness.limit_s()
                # A batch that comes in time does not wake this thread: it would slow each one.
                self._changed.wait(left_s)
        return None

    def _start(self, number: int, endpoint: Endpoint, token: bytes) -> bool:
        with self._changed:
            if self._is_done or self._since is None or self._number != number:
                return False
            self._hedge = self._ask(endpoint, token)
            counts = self._lateness.counts
            counts.asked += 1
        _log.info("a batch is late; asking %s too (hedge %d)", endpoint.address, counts.asked)
        return True

    def _fetch(self, endpoint: Endpoint) -> BatchEvent | None:
        assert self._hedge is not None
        try:
            return self._hedge.get()
        except HeadraceError as error:
            _log.info("the hedge at %s failed (%s)", endpoint.address, error.reason)
            return None
        finally:
            with self._changed:
                self._hedge = None

    def _win(self, number: int, batch: BatchEvent, endpoint: Endpoint) -> bool:
        with self._changed:
            if self._is_done or self._since is None or self._number != number:
                return False
            self._won, self.winner = batch, endpoint
            self._lateness.counts.won += 1
        _log.info("the hedge at %s answered first; continuing there", endpoint.address)
        return True


@contextmanager
def hedged(feed: HedgedFeed) -> Iterator[HedgedFeed]:
    """Watch a feed in a thread for as long as the context lasts."""
    thread = threading.Thread(target=feed.run, name="headrace-hedge", daemon=True)
    thread.start()
    try:
        yield feed
    finally:
        feed.cancel()
        thread.join(timeout=5)


def _token_after(event: Event | bytes | None, *, end_epoch: int | None) -> bytes | None:
    """Return the token that a hedge may start from; None if no batch comes next."""
    if event is None:
        return None
    if isinstance(event, bytes):
        token, epoch = event, None
    elif isinstance(event, BatchEvent):
        token, epoch = event.header.resume_token, event.header.epoch
    else:
        token, epoch = event.resume_token, None
    after = decode_token(token).epoch
    # No batch comes between an epoch's last batch and its end, or after the last epoch.
    is_last = epoch is not None and after != epoch
    return None if is_last or after == end_epoch else token
