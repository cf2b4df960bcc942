"""Read events from wherever a server answers, for as long as the deadlines allow.

Contract of `BatchReader.events`:

1. Success: every batch and every end of an epoch from the start, each once, in order; then the
   generator returns, if the options name a last epoch.
2. Temporary failure: the reader waits as `Patience` says, and continues from the resume token of
   the last event, at the next endpoint. The caller sees only the log and `reconnect_count`. When
   its endpoint is outdated, the reader does the same without waiting.
3. Permanent failure, or one that lasts beyond the deadlines: the error is raised; it says which hop
   failed, since when, and what was tried.
4. Silence: a stream that sends nothing for ``silence_s`` while the reader waits is cancelled and
   counts as a temporary failure. A stream that sends only signs of life for ``give_up_s`` is given
   up, whatever its server says that it waits for.
5. Close, from any thread: the current call is cancelled, waits end at once, the generator returns.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headrace.client.feeds.feed import Event, Feed, OpenFeed
from headrace.client.feeds.grpc_feed import WireFeeds
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.access import Access
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.settings import (
    DEFAULT_MAX_BATCH_BYTES,
    GROUP_BYTES,
    Backoff,
    Deadlines,
    Hedge,
)
from headrace.client.reader.get_batch import SingleBatch, get_batch_request
from headrace.client.reader.hedging import HedgeCounts, HedgedFeed, Lateness, hedged
from headrace.client.servers.endpoints import Endpoint, Endpoints
from headrace.client.servers.failed_hop import failed_hop
from headrace.client.servers.replicas import fixed_endpoints, seat_of
from headrace.client.servers.retry_policy import Patience
from headrace.client.servers.wrong_protocol import explained
from headrace.client.wire.assembler import Allocate, BatchEvent, EpochEndEvent
from headrace.client.wire.buffers import aligned
from headrace.errors import HeadraceError, StoreUnavailableError
from headrace.order import decode_token, encode_token
from headrace.v1 import shard_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading starts: after ``token``, or at a position of an epoch if there is none.

    Attributes:
        epoch: The epoch, >= 0.
        position: Samples of the epoch before this place, over all ranks.
        token: The resume token of this place, or None.
        offset: With a stride, the number of batches from here that other readers read first; None
            for the offset of `ReadOptions`, which counts from the start of an epoch.
    """

    epoch: int = 0
    position: int = 0
    token: bytes | None = None
    offset: int | None = None

    @classmethod
    def after(cls, token: bytes) -> Place:
        """Return the place that a token names."""
        content = decode_token(token)
        return Place(content.epoch, content.position, token)

    def moved(self, epoch: int, position: int) -> Place:
        """Return another place of the same run; its token keeps the counts of the run."""
        token = self.token
        if token is not None:
            token = encode_token(replace(decode_token(token), epoch=epoch, position=position))
        return Place(epoch, position, token)


class BatchReader:
    """Read the batches of one rank, over reconnects and epochs."""

    def __init__(
        self,
        targets: Sequence[str] | Endpoints,
        options: ReadOptions,
        *,
        place: Place,
        deadlines: Deadlines,
        allocate: Allocate,
        backoff: Backoff | None = None,
        access: Access | None = None,
        on_failure: Callable[[HeadraceError], None] | None = None,
        open_feed: OpenFeed | None = None,
        hedge: Hedge | None = None,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        """Prepare to read; nothing is connected before the first event is asked for.

        Args:
            targets: gRPC addresses of servers that serve the same datasets, tried in turn; or
                endpoints, which know how to authenticate.
            options: What to read.
            place: Where to start.
            deadlines: How long to wait.
            allocate: Where payloads go.
            backoff: The waits between two tries; None for `Backoff()`.
            access: How to authenticate at the addresses; None for plain text without a token.
            on_failure: Called with each failure of a stream, before it is retried or raised.
            open_feed: How streams are opened; None for gRPC alone, into what ``allocate`` returns.
            hedge: When to ask a second server for a late batch; None for never. Not with strides.
            max_batch_bytes: Most payload bytes of a batch, whatever a server says; ``open_feed``
                has its own bound.
            group_bytes: Most bytes of small batches that may come in one message, >= 0.
        """
        self._group_bytes = group_bytes
        self._on_failure = on_failure
        self._endpoints = (
            fixed_endpoints(
                targets,
                access,
                seat=seat_of(
                    rank=options.rank, world_size=options.world_size, seed=options.order.seed
                ),
            )
            if isinstance(targets, Sequence)
            else targets
        )
        self._options = options
        self._place = place
        self._deadlines = deadlines
        self._max_batch_bytes = max_batch_bytes
        self._open_feed = open_feed or WireFeeds(
            allocate, deadlines.silence_s, max_batch_bytes=max_batch_bytes
        )
        self._lateness = None if hedge is None or options.batch_stride > 1 else Lateness(hedge)
        self._preferred: Endpoint | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._feed: Feed | None = None
        self._last: Event | None = None
        self._open_epoch: int | None = None
        self._patience = Patience(
            deadlines,
            backoff or Backoff(),
            reading=options.dataset,
            has_others=self._endpoints.has_others,
        )
        self._has_foreign_offset = False
        self.reconnect_count = 0
        self.clock = HopClock()

    @property
    def hedges(self) -> HedgeCounts:
        """The counts of hedges so far."""
        return HedgeCounts() if self._lateness is None else self._lateness.counts

    def events(self) -> Generator[Event, None, None]:
        """Yield batches and ends of epochs; the module docstring holds the contract."""
        try:
            while not self._closed.is_set() and not self._finished():
                if (yield from self._try()):
                    return
        finally:
            self.clock.enter("rest")
            self._endpoints.close()

    def close(self) -> None:
        """End the reading; may be called from any thread, any number of times."""
        self._closed.set()
        with self._lock:
            if self._feed is not None:
                self._feed.cancel()

    def _finished(self) -> bool:
        end = self._options.end_epoch
        return end is not None and self._place.epoch >= end

    def _try(self) -> Generator[Event, None, bool]:
        """Yield what one server sends; return whether that was all."""
        asked = ", ".join(self._endpoints.names)
        self.clock.await_answer()
        endpoint, self._preferred = self._preferred, None
        try:
            if endpoint is None:
                endpoint = self._endpoints.choose(self._patience.moves, self._closed)
            asked = endpoint.address
            is_whole = yield from self._stream(endpoint)
            self._settle()
            if not self._closed.is_set():
                yield from self._missed_epoch_end()
        except HeadraceError as error:
            self._settle()
            if self._closed.is_set():
                return True
            if self._on_failure is not None:
                self._on_failure(error)
            # No variable here may keep an error: its traceback holds a ring's memory.
            wait_s = self._patience.fail(
                explained(error, endpoint) if self._patience.is_first_contact else error,
                asked=asked,
                now=time.monotonic(),
            )
            self.reconnect_count += 1
            self.clock.fail(failed_hop(error))
            self.clock.await_answer()
            self._closed.wait(wait_s)
            yield from self._missed_epoch_end()
            return False
        return is_whole and not self._has_foreign_offset

    def _stream(self, endpoint: Endpoint) -> Generator[Event, None, bool]:
        """Yield a stream's events; return whether it ended by itself."""
        with self._open(endpoint) as feed:
            with self._lock:
                self._feed = feed
            is_closed, patience = self._closed.is_set, self._patience
            if is_closed():
                return True
            alive_since: float | None = None
            for event in feed.events():
                if is_closed():
                    return True
                if event is None:
                    patience.hear()
                    now = time.monotonic()
                    alive_since = now if alive_since is None else alive_since
                    if now - alive_since >= self._deadlines.give_up_s:
                        patience.count_from(alive_since)
                        raise _only_alive(endpoint, now - alive_since)
                    continue
                alive_since = None
                self._last = event
                self.clock.succeed()
                if patience.attempt:
                    patience.succeed()
                yield event
                if self._endpoints.is_outdated(endpoint):
                    return False
            if isinstance(feed, HedgedFeed):
                self._preferred = feed.winner
        return self._preferred is None

    @contextmanager
    def _open(self, endpoint: Endpoint) -> Iterator[Feed]:
        request, lateness = self._request(), self._lateness
        if endpoint.versions and self._place.token is None and request.dataset:
            # Mixtures name their versions themselves.
            request.fingerprint = endpoint.version_of(request.dataset)

        def ask(other: Endpoint, token: bytes) -> SingleBatch:
            return SingleBatch(
                other,
                get_batch_request(request, token),
                # Not the reader's own buffers, which only its thread may use.
                allocate=aligned,
                limit_s=self._deadlines.silence_s,
                max_batch_bytes=self._max_batch_bytes,
            )

        with self._open_feed(endpoint, request, clock=self.clock) as feed:
            if lateness is None:
                yield feed
                return
            double = HedgedFeed(
                feed,
                lateness,
                token=self._place.token,
                end_epoch=self._options.end_epoch,
                other=lambda: self._endpoints.beside(endpoint, self._closed),
                ask=ask,
            )
            with hedged(double):
                yield double

    def _request(self) -> pb.ReadBatchesRequest:
        place, offset = self._place, self._options.batch_offset
        request = self._options.to_request(
            epoch=place.epoch, position=place.position, token=place.token
        )
        if self._lateness is None:
            # Without hedges only: of batches that come together, all but the first seem to take no
            # time, and the next message would look late.
            request.max_group_bytes = self._group_bytes
        if place.offset is not None:
            request.batch_offset = place.offset
        # The server applies a stream's offset to every epoch of it, so a stream that starts
        # between two of our batches ends with its epoch.
        self._has_foreign_offset = request.batch_offset != offset
        if self._has_foreign_offset:
            request.epoch_count = 1
        return request

    def _settle(self) -> None:
        """Move to the place after the last event, whose token is decoded only here."""
        event, self._last = self._last, None
        if event is None:
            return
        token = event.header.resume_token if isinstance(event, BatchEvent) else event.resume_token
        after = decode_token(token)
        ends_epoch = isinstance(event, BatchEvent) and after.epoch > event.header.epoch
        self._open_epoch = after.epoch - 1 if ends_epoch else None
        is_inside = isinstance(event, BatchEvent) and not ends_epoch
        offset = self._options.batch_stride - 1 if is_inside else None
        self._place = Place(after.epoch, after.position, token, offset)

    def _missed_epoch_end(self) -> Iterator[Event]:
        # The stream broke, or was left, between an epoch's last batch and its end. The token is
        # already in the next epoch, so no server will send that end again.
        if self._open_epoch is not None and self._place.token is not None:
            epoch, self._open_epoch = self._open_epoch, None
            yield EpochEndEvent(epoch, self._place.token)


def _only_alive(endpoint: Endpoint, seconds: float) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{endpoint.address} has sent heartbeats for {seconds:.1f} s but no batch; its log says "
        "what it waits for; or use another server",
        target=endpoint.address,
    )
