"""The RPCs of the service, and how each is answered."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from headrace.errors import (
    HeadraceError,
    InternalError,
    PayloadLimitError,
    UnauthenticatedError,
)
from headrace.server.access.callers import Caller
from headrace.server.batch.freed_memory import give_freed_memory_back
from headrace.server.cache.block_cache import BlockCache
from headrace.server.datasets.catalog import Catalog, Request, find, names_of
from headrace.server.datasets.filters import Filters
from headrace.server.datasets.open_mixtures import Mixtures
from headrace.server.datasets.served import Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.datasets.served_rows import ServedRows
from headrace.server.front.calls import Call, Method
from headrace.server.front.methods import Streaming, unary
from headrace.server.front.pools import CallPools
from headrace.server.images.pixel_cache import PixelCache
from headrace.server.ring.outlet import RingMessages, RingOutlet
from headrace.server.ring.rings import Rings, RingWish
from headrace.server.settings.server_config import ServerConfig
from headrace.server.settings.transform_config import transform_configs
from headrace.server.shares import Budget, Share
from headrace.server.steps.registered import Registered, Tokenizers, load_tokenizers
from headrace.server.steps.row_pool import RowPool, allowed_processors
from headrace.server.steps.transform_pool import TransformPool
from headrace.server.stream.batch_stream import BatchStream, StreamLimits
from headrace.server.stream.encode_thread import Messages, MessagesAhead
from headrace.server.stream.explain import explain
from headrace.server.stream.fair_turns import SendTurns, StreamTurns, Turns
from headrace.server.stream.find_samples import find_samples
from headrace.server.stream.open_streams import OpenStream, OpenStreams
from headrace.server.stream.stream_setup import (
    Contents,
    batch_contents,
    samples_contents,
    stream_contents,
    transform_message,
)
from headrace.server.telemetry.cache_needs import CacheNeeds
from headrace.server.telemetry.logs import event
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.stream_counts import StreamAbout
from headrace.server.telemetry.stream_tally import StreamTally
from headrace.server.telemetry.tracing import Tracing
from headrace.v1 import shard_service_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["ShardService"].full_name

# So that streams opened together do not end together.
_LIFETIME_JITTER = 0.2

# All streams together may prefetch this part of the cache. With a cache of `shuffle_bytes`, a
# shuffle of small samples needs 17 of 18.5 parts at a time and fetches one more; prefetching beyond
# that would evict blocks that are still needed.
_PREFETCH_SHARE = 20
# And this part while less than half of the cache is in use, since nothing is evicted then.
_EARLY_PREFETCH_SHARE = 4

_PROCESSORS = os.cpu_count() or 1

# Steps leave one processor to streams without steps, and so do long questions: two streams that
# decode images on two processors cut the rate of another caller to less than half (tests/attacks).
_STEPS_AT_ONCE = max(1, min(4, _PROCESSORS - 1))

# How long calls wait for a filter before they are told to retry; small datasets are filtered by
# then. Unary calls have few threads.
_UNARY_WAIT_S = 0.25
_STREAM_WAIT_S = 2.0

# Without rests, one long question after the other left another caller 0.38 of its rate on two
# processors (tests/attacks/a25), and with rests once as long 0.48. The look is arbitrary.
_REST, _REST_LOOK_S = 3, 0.02

_log = logging.getLogger(__name__)

_Request = TypeVar("_Request", bound=Message)
_StreamRequest = TypeVar(
    "_StreamRequest", pb.ReadBatchesRequest, pb.GetBatchRequest, pb.GetSamplesRequest
)


class ShardService:
    """Answers the RPCs of ``headrace.v1.ShardService``.

    Args:
        config: The server's settings.
        catalog: The server's datasets.
        cache: The cache of their blocks.
        streams: The server's open streams.
        metrics: Counts events.
        rings: Makes rings for clients on this host.
        pools: The pools of threads.
        tracing: Records streams that have ended; None for no tracing.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        catalog: Catalog,
        cache: BlockCache,
        streams: OpenStreams,
        metrics: Metrics,
        pools: CallPools,
        rings: Rings,
        tracing: Tracing | None = None,
    ) -> None:
        self._budget = Budget(config.payload_bytes, trim=give_freed_memory_back)
        metrics.watch_memory(self._budget)
        self._config = config
        self._catalog = catalog
        self._cache = cache
        self._streams = streams
        self._metrics = metrics
        self._pools = pools
        self._rings = rings
        self._tracing = tracing
        self._mixtures = Mixtures()
        self._filters = Filters()
        self._needs = CacheNeeds(cache.budget_bytes)
        self._transforms = TransformPool(
            transform_configs(config.transforms),
            workers=config.transform_workers,
            timeout_s=config.transform_timeout_s,
            max_batch_bytes=config.max_batch_bytes,
        )
        self._registered = Registered(
            self._transforms, Tokenizers(load_tokenizers(config.tokenizers))
        )
        self._turns = Turns()
        self._step_turns = Turns(_STEPS_AT_ONCE)
        # Not those of steps, whose turns take milliseconds.
        self._question_turns = Turns(_STEPS_AT_ONCE)
        # By caller; see `_take_single_turn`.
        self._single_turns: dict[str, Turns] = {}
        # By `time.monotonic`; see `_question_turn`.
        self._rests_until = 0.0
        pixels = None
        if config.decoded_cache_bytes:
            pixels = PixelCache(config.decoded_cache_bytes, observer=metrics)
            metrics.watch_pixels(pixels)
        self._rows = RowPool(config.step_threads or allowed_processors(), pixels=pixels)
        self._send_turns = SendTurns()

    def close(self) -> None:
        """Stop the threads that work for calls; all calls must have ended."""
        self._filters.close()
        self._transforms.close()
        self._rows.close()

    def methods(self) -> dict[str, Method]:
        """Return the RPCs by their full names."""
        few = self._pools.unary
        found = {
            "ListDatasets": unary(pb.ListDatasetsRequest, few, self._list_datasets),
            "GetDataset": unary(pb.GetDatasetRequest, few, self._get_dataset),
            "ExplainBatch": unary(pb.ExplainBatchRequest, few, self._explain_batch),
            "FindSamples": unary(pb.FindSamplesRequest, few, self._find_samples),
            "ReadBatches": self._streaming(stream_contents, pb.ReadBatchesRequest),
            "AttachRing": self._stream_method(pb.AttachRingRequest, self._attach_ring),
            "GetBatch": self._streaming(batch_contents, pb.GetBatchRequest),
            "GetSamples": self._streaming(samples_contents, pb.GetSamplesRequest),
        }
        return {f"/{SERVICE}/{name}": method for name, method in found.items()}

    def _list_datasets(
        self, request: pb.ListDatasetsRequest, caller: Caller
    ) -> pb.ListDatasetsResponse:
        seen = self._catalog.seen_by(caller)
        return seen.page(size=request.page_size, token=request.page_token)

    def _get_dataset(self, request: pb.GetDatasetRequest, caller: Caller) -> pb.GetDatasetResponse:
        served = self._catalog.seen_by(caller).served(request.name).version(request.fingerprint)
        if request.where:
            served = self._filters.apply(served, request.where, caller, wait_s=_UNARY_WAIT_S)
        transforms = map(transform_message, self._transforms.configs.values())
        return pb.GetDatasetResponse(
            dataset=served.to_proto(),
            transforms=transforms,
            classes=served.classes,
        )

    def _explain_batch(
        self, request: pb.ExplainBatchRequest, caller: Caller
    ) -> pb.ExplainBatchResponse:
        served = self._find(request.batch, caller, wait_s=_UNARY_WAIT_S)
        with self._question_turn(caller):
            return explain(request.batch, served, registered=self._registered)

    def _find_samples(
        self, request: pb.FindSamplesRequest, caller: Caller
    ) -> pb.FindSamplesResponse:
        served = self._find(request.batch, caller, wait_s=_UNARY_WAIT_S)
        with self._question_turn(caller):
            return find_samples(request, served, registered=self._registered)

    @contextmanager
    def _question_turn(self, caller: Caller) -> Iterator[None]:
        """Wait for a turn of questions that may take seconds, and hold it.

        While there are streams, each waits for `_REST` times as long as the one before took.
        """
        turns = self._question_turns.of(caller.name)
        for _ in turns.queued():
            pass
        while self._streams.count and (left_s := self._rests_until - time.monotonic()) > 0:
            time.sleep(min(left_s, _REST_LOOK_S))
        began = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            self._rests_until = now + _REST * (now - began)
            turns.end_worked(now - began)

    def _find(self, request: Request, caller: Caller, *, wait_s: float) -> Served:
        def filtering(served: ServedDataset | ServedRows, where: str) -> ServedDataset:
            return self._filters.apply(served, where, caller, wait_s=wait_s)

        return find(request, self._catalog.seen_by(caller), self._mixtures, filtering)

    def _streaming(
        self,
        contents: Callable[[_StreamRequest, Served, Registered], Contents],
        request: type[_StreamRequest],
    ) -> Method:
        def respond(message: _StreamRequest, call: Call) -> Iterator[bytes]:
            return self._call(
                lambda served: contents(message, served, self._registered), message, call
            )

        return self._stream_method(request, respond)

    def _stream_method(
        self, request: type[_Request], messages: Callable[[_Request, Call], Iterator[bytes]]
    ) -> Method:
        def refuse(call: Call) -> None:
            self._streams.check(call.caller, call.host)

        def admit(call: Call) -> AbstractContextManager[None]:
            return self._streams.admit(call.caller, call.host)

        pool, sender = self._pools.streams, self._send_turns.sender
        # Messages are bytes already; see headrace.server.batch.targets.
        return Streaming(request, pool, refuse, admit, messages, sender)

    def _attach_ring(self, message: pb.AttachRingRequest, call: Call) -> Iterator[bytes]:
        wish = RingWish(message.ring_bytes, message.check_payload, call.peer, call.on_end)
        return self._call(
            lambda served: stream_contents(message.read, served, self._registered),
            message.read,
            call,
            wish,
        )

    def _call(
        self,
        contents: Callable[[Served], Contents],
        request: pb.ReadBatchesRequest | pb.GetBatchRequest | pb.GetSamplesRequest,
        call: Call,
        wish: RingWish | None = None,
    ) -> Iterator[bytes]:
        self._streams.call_began()
        if not call.on_end(self._streams.call_ended):
            self._streams.call_ended()
            return
        served = self._find(request, call.caller, wait_s=_STREAM_WAIT_S)
        found = contents(served)
        with (
            self._streams.opened(call.cancel, lambda: self._lost(call, request)) as registered,
            closing(self._share(call.caller, found, registered)) as share,
            ExitStack() as single_turn,
        ):
            opened = _Opened(
                found,
                served,
                call.caller,
                call.peer,
                _rank(request),
                share,
                registered,
                single_turn,
            )
            self._take_single_turn(opened)
            if wish is None:
                yield from self._stream(opened, call)
            else:
                yield from self._stream_in_ring(opened, call, wish)

    def _take_single_turn(self, opened: _Opened) -> None:
        """Wait for a turn if a single batch was requested and other callers have streams.

        A few threads make and send the single batches of each caller then, since 16 large ones at a
        time left another caller 0.31 of its rate. A batch that waits for the store gives up its
        turn, and one whose client does not read it costs the next one a moment.
        """
        if opened.rank is None and self._streams.is_shared:
            name = opened.caller.name
            turns = self._single_turns.setdefault(name, Turns(_STEPS_AT_ONCE))
            opened.single_turn.enter_context(turns.of(name).turn())

    def _stream_in_ring(self, opened: _Opened, call: Call, wish: RingWish) -> Iterator[bytes]:
        contents = opened.contents
        outlet = yield from self._rings.attach(
            wish,
            max_chunk_bytes=contents.max_chunk_bytes,
            batch_bytes=contents.tensor_bytes,
            share=opened.share,
        )
        # So that the end of the ring and the end of the call agree.
        with closing(outlet):
            yield from self._stream(opened, call, outlet)

    def _stream(
        self, opened: _Opened, call: Call, outlet: RingOutlet | None = None
    ) -> Iterator[bytes]:
        served, name = opened.served, opened.caller.name
        tally = StreamTally(self._metrics, served.name, opened.rank, opened.about)
        stream = BatchStream(
            opened.contents,
            dataset=served.name,
            blocks=served.blocks(self._cache),
            limits=self._limits(served),
            observer=tally,
            outlet=outlet,
            turns=StreamTurns(
                self._turns.of(name),
                self._step_turns.of(name),
                self._rows,
                on_store_wait=opened.single_turn.close,
            ),
            share=opened.share,
        )
        reason, text = "CANCELLED", ""
        tally.begin()
        _log.log(opened.level, "stream opened", extra=event(**opened.fields))
        try:
            with (
                # Its messages may never be read: the client may be gone by now.
                closing(stream),
                self._needs.held(opened.contents.need, dataset=served.name),
            ):
                self._streams.begin(opened.registered, stream, served.retirements)
                running = RingMessages(stream, outlet) if outlet else self._running(stream, opened)
                if not call.on_end(running.cancel):
                    return
                yield from tally.timed(running.messages(), taken=opened.share.sent)
                reason = "OK" if call.is_active else "CANCELLED"
        except HeadraceError as error:
            reason, text = error.reason, error.message
            raise
        except Exception:
            reason = InternalError.reason
            raise
        finally:
            ended = {**opened.fields, "reason": reason, "error": text, **tally.close(reason)}
            _log.log(opened.level, "stream ended", extra=event(**ended))
            if self._tracing is not None:
                self._tracing.streamed(ended, call.metadata, seconds=tally.seconds, reason=reason)

    def _lost(self, call: Call, request: Request) -> HeadraceError | None:
        """Return why the caller of an open stream may no longer read it; None if it may."""
        try:
            caller = call.known_caller()
        except HeadraceError as error:
            return error
        if all(map(caller.may_read, map(self._catalog.owner_of, names_of(request)))):
            return None
        return UnauthenticatedError("the caller may no longer read this")

    def _running(self, stream: BatchStream, opened: _Opened) -> Messages:
        # A single batch has no successor to make while it is sent.
        if opened.rank is None:
            return stream
        return MessagesAhead(stream, is_worth_it=lambda: self._is_processor_free(opened.caller))

    def _is_processor_free(self, caller: Caller) -> bool:
        # With more streams than processors, all processors are busy anyway, and second threads only
        # cost: with 64 streams on two processors, a fifth of the server's processor time. Streams
        # with a second thread also get more than others, early streams a third more. But each
        # caller has its share of the processors, however many streams others have.
        streams = self._streams
        return streams.count <= _PROCESSORS or streams.are_within_share(caller, _PROCESSORS)

    def _share(self, caller: Caller, contents: Contents, registered: OpenStream) -> Share:
        return Share(
            self._budget,
            caller.name,
            recall=lambda: registered.end(_recalled_error()),
            message_bytes=max(contents.max_chunk_bytes, contents.max_group_bytes),
            streams=self._config.max_streams,
        )

    def _limits(self, served: Served) -> StreamLimits:
        config = self._config
        jitter = random.uniform(1 - _LIFETIME_JITTER, 1 + _LIFETIME_JITTER)
        return StreamLimits(
            heartbeat_s=config.heartbeat_s,
            store_timeout_s=config.store_timeout_s,
            step_timeout_s=config.step_timeout_s,
            lifetime_s=config.max_stream_s * jitter,
            max_batch_bytes=config.max_batch_bytes,
            prefetch_bytes=lambda: self._prefetch_bytes(served),
            spare_bytes=self._spare_bytes,
        )

    def _spare_bytes(self) -> int:
        # Only of a worker's part of the cache: what others need is unknown here.
        spare_bytes = self._needs.spare_bytes(self._config.cache_bytes)
        return min(spare_bytes, self._config.prefetch_bytes)

    def _prefetch_bytes(self, served: Served) -> int:
        raw_bytes = max(1, served.dataset.raw_bytes)
        is_filling = self._cache.readers.filling.is_filling
        part = _PREFETCH_SHARE if is_filling else _EARLY_PREFETCH_SHARE
        share = self._config.cache_bytes // (part * max(1, self._streams.count))
        stored_share = share * served.dataset.stored_bytes // raw_bytes
        return min(self._config.prefetch_bytes, stored_share)


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """What a call asked for, and its caller."""

    contents: Contents
    served: Served
    caller: Caller
    peer: str
    rank: int | None
    share: Share
    registered: OpenStream
    single_turn: ExitStack

    @property
    def about(self) -> StreamAbout:
        """Return the description of the stream for status and metrics."""
        start = self.contents.start
        return StreamAbout(
            self.caller.name,
            self.peer,
            self.contents.title,
            start.epoch_sample_count,
            (start.epoch, start.position),
        )

    @property
    def level(self) -> int:
        """The log level of its start and end; requests for single batches may be frequent."""
        return logging.DEBUG if self.rank is None else logging.INFO

    @property
    def fields(self) -> dict[str, object]:
        """Return its fields in the log."""
        return {
            "dataset": self.served.name,
            "asked": self.contents.title,
            "caller": self.caller.name,
            "peer": self.peer,
        }


def _recalled_error() -> PayloadLimitError:
    return PayloadLimitError(
        "this stream used more than its share of the server's memory, which others need; read "
        "faster, use a smaller batch, or ask the operator for more --payload-bytes"
    )


def _rank(request: Message) -> int | None:
    return request.rank if isinstance(request, pb.ReadBatchesRequest) else None
