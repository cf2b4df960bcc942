"""Read events from wherever a server answers, for as long as the deadlines allow.

Contract of `BatchReader.events`:

1. Success: every batch and every end of an epoch from the start on, each once, in order; then the
   generator returns, if the options name a last epoch.
2. Failure that may pass (see `may_retry`): the reader waits with full jitter, or as long as the
   server asks, and goes on from the resume token of the last event, at the next target. The caller
   sees nothing of it but the log and `reconnect_count`.
3. Failure that may not, or one that lasts beyond the deadlines: the error is raised; it says which
   target failed how, since when, and how often it was tried.
4. Silence: a stream that sends nothing for ``silence_s`` while the reader waits is cancelled and
   counts as a failure that may pass.
5. Close, from any thread: the current call is cancelled, waits end at once, the generator returns.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.client._access import Access
from headrace.client._assembler import Allocate, BatchEvent, EpochEndEvent, StreamAssembler
from headrace.client._call import StreamCall, open_stream
from headrace.client._config import Backoff, Deadlines
from headrace.client._endpoints import Endpoint, Endpoints, fixed_endpoints
from headrace.client._request import ReadOptions
from headrace.client._status import may_retry, retry_after_s
from headrace.errors import HeadraceError, ServerUnreachableError
from headrace.order import decode_token
from headrace.v1 import shard_service_pb2 as pb

_log = logging.getLogger(__name__)

Event = BatchEvent | EpochEndEvent


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading begins: after ``token``, or at a position of an epoch if there is none.

    Attributes:
        epoch: The epoch, >= 0.
        position: Samples of the epoch before this place, over all ranks.
        token: The resume token of this place, or None.
        offset: Batches from here on that other readers have, of a stride; None for the offset
            that `ReadOptions` gives at the begin of an epoch.
    """

    epoch: int = 0
    position: int = 0
    token: bytes | None = None
    offset: int | None = None


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
    ) -> None:
        """Prepare to read; nothing is connected before the first event is asked for.

        Args:
            targets: gRPC addresses of servers that serve the same datasets, tried in turn; or a
                choice that knows how to get in.
            options: What to read.
            place: Where to begin.
            deadlines: How long to wait.
            allocate: Where payloads go.
            backoff: The waits between two tries; None means `Backoff()`.
            access: How to get in at the addresses; None for plain text and no token.
            on_failure: Called with each failure of a stream, before it is retried or raised.
        """
        self._on_failure = on_failure
        self._endpoints = (
            fixed_endpoints(targets, access) if isinstance(targets, Sequence) else targets
        )
        self._options = options
        self._place = place
        self._deadlines = deadlines
        self._allocate = allocate
        self._backoff = backoff or Backoff()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._call: StreamCall | None = None
        self._open_epoch: int | None = None
        self._attempt = 0
        self._failing_since: float | None = None
        self._ever_heard = False
        self._has_foreign_offset = False
        self.reconnect_count = 0

    def events(self) -> Iterator[Event]:
        """Yield batches and ends of epochs; the module's head holds the contract."""
        while not self._closed.is_set() and not self._finished():
            try:
                endpoint = self._endpoints.choose(self._attempt, self._closed)
                yield from self._stream(endpoint)
            except HeadraceError as error:
                if self._closed.is_set():
                    return
                self._recover(error)
                yield from self._missed_epoch_end()
            else:
                if not self._has_foreign_offset:
                    return

    def close(self) -> None:
        """End the reading; safe from any thread, any number of times."""
        self._closed.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def _finished(self) -> bool:
        end = self._options.end_epoch
        return end is not None and self._place.epoch >= end

    def _stream(self, endpoint: Endpoint) -> Iterator[Event]:
        request = self._request()
        with open_stream(
            endpoint.address,
            request,
            silence_s=self._deadlines.silence_s,
            access=endpoint.access,
        ) as call:
            with self._lock:
                self._call = call
            if self._closed.is_set():
                return
            assembler = StreamAssembler(self._allocate)
            for message in call.messages():
                if self._closed.is_set():
                    return
                self._ever_heard = True
                event = assembler.feed(message)
                if event is not None:
                    self._advance(event)
                    yield event

    def _request(self) -> pb.ReadBatchesRequest:
        place, offset = self._place, self._options.batch_offset
        request = self._options.to_request(
            epoch=place.epoch, position=place.position, token=place.token
        )
        if place.offset is not None:
            request.batch_offset = place.offset
        # The server applies a stream's offset to every epoch of it, so a stream that begins
        # between two of our batches ends with its epoch.
        self._has_foreign_offset = request.batch_offset != offset
        if self._has_foreign_offset:
            request.epoch_count = 1
        return request

    def _advance(self, event: Event) -> None:
        token = event.header.resume_token if isinstance(event, BatchEvent) else event.resume_token
        after = decode_token(token)
        ends_epoch = isinstance(event, BatchEvent) and after.epoch > event.header.epoch
        self._open_epoch = after.epoch - 1 if ends_epoch else None
        is_inside = isinstance(event, BatchEvent) and not ends_epoch
        offset = self._options.batch_stride - 1 if is_inside else None
        self._place = Place(after.epoch, after.position, token, offset)
        self._attempt = 0
        self._failing_since = None

    def _missed_epoch_end(self) -> Iterator[Event]:
        # The stream broke between an epoch's last batch and its end. The token stands at the next
        # epoch already, so no server will send that end again.
        if self._open_epoch is not None and self._place.token is not None:
            epoch, self._open_epoch = self._open_epoch, None
            yield EpochEndEvent(epoch, self._place.token)

    def _recover(self, error: HeadraceError) -> None:
        now = time.monotonic()
        since = self._failing_since = self._failing_since or now
        self._attempt += 1
        if self._on_failure is not None:
            self._on_failure(error)
        limit = self._deadlines.give_up_s if self._ever_heard else self._deadlines.connect_s
        if not may_retry(error):
            raise error
        if now - since >= limit:
            raise self._gave_up(error, now - since) from error
        if self._attempt == 1:
            # Once a fault, and in a low voice while a server may just be starting.
            level = logging.WARNING if self._ever_heard else logging.INFO
            _log.log(
                level, "the stream of %r broke; reconnecting (%s)", self._options.dataset, error
            )
        self.reconnect_count += 1
        wait_s = retry_after_s(error)
        if wait_s is None:
            wait_s = self._backoff.wait_s(self._attempt - 1, random.random())
        self._closed.wait(min(wait_s, max(0.0, since + limit - now)))

    def _gave_up(self, error: HeadraceError, seconds: float) -> HeadraceError:
        what = "no batch" if self._ever_heard else "no answer"
        targets = ", ".join(self._endpoints.names)
        return ServerUnreachableError(
            f"{what} for {seconds:.1f} s in {self._attempt} tries at {targets}, reading "
            f"{self._options.dataset!r}: {error.message}",
            targets=targets,
            attempts=self._attempt,
        )
