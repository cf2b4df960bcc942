"""One call for batches, from its parsed request to its last message.

Contract:

1. The call is counted until its last byte is sent, so that a drain waits for it.
2. It finds its dataset and its contents before it takes memory, one call of its caller at a time
   (`Schedule.setup_turn`). While other callers have streams, and it has no stages or transport, its
   first batch is made in that turn too, unless it waits for the store. From then on it can be
   ended: between two batches, or by force if its client does not read (`OpenStreams`).
3. A call for a single batch holds a turn among its caller's (`Schedule.single_turn`), until it
   waits for the store. Any other makes its next batch while it sends one, if a processor is free.
4. Its start and its end are in the log and in metrics, with the reason and all counts, however it
   ends.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from google.protobuf.any_pb2 import Any

from headrace.errors import (
    HeadraceError,
    InternalError,
    PayloadLimitError,
    RebalanceError,
    UnauthenticatedError,
)
from headrace.server.access.callers import Caller
from headrace.server.batch.freed_memory import give_freed_memory_back
from headrace.server.datasets.member import Member
from headrace.server.datasets.served import Served
from headrace.server.plan.stream_request import ReadRequest
from headrace.server.shares import Budget, Share
from headrace.server.stream.batch_stream import BatchStream
from headrace.server.stream.encode_thread import Messages, MessagesAhead
from headrace.server.stream.open_streams import OpenStream
from headrace.server.stream.order_plugs import Asker, Finding
from headrace.server.stream.parts import Parts
from headrace.server.stream.schedule import Schedule
from headrace.server.stream.stage_plugs import Stages
from headrace.server.stream.stream_setup import Contents
from headrace.server.stream.transport_plugs import Attach, Attached, AttachingCall
from headrace.server.telemetry.logs import event
from headrace.server.telemetry.shortages import ShortageWarnings, tell_shortage
from headrace.server.telemetry.stream_counts import StreamAbout, StreamTally

# How long calls wait for a filter before they are told to ask again.
_WAIT_S = 2.0

_log = logging.getLogger(__name__)

_Asked = TypeVar("_Asked")
_Setup = Callable[[ReadRequest, Served, Stages], Contents]


class StreamCall(AttachingCall, Protocol):
    """A call in gRPC; see `headrace.server.front.calls.Call`."""

    def cut(self, error: HeadraceError) -> None:
        """End the call in the middle of its work, and by force the second time."""

    def known_caller(self) -> Caller:
        """Return the caller according to the current callers file."""


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """What a call asked for."""

    call: StreamCall
    contents: Contents
    served: Served
    share: Share
    registered: OpenStream
    single_turn: ExitStack
    start: ExitStack | None

    def wait_for_store(self) -> None:
        """Give up all turns."""
        if self.start is not None:
            self.start.close()
        self.single_turn.close()

    @property
    def fields(self) -> dict[str, object]:
        """Return its fields in the log."""
        return {
            "dataset": self.served.name,
            "asked": self.contents.title,
            "caller": self.call.caller.name,
            "peer": self.call.peer,
        }


class StreamCalls:
    """Answers the calls for batches of one server; thread-safe.

    Args:
        parts: What it shares with other parts of the server.
        schedule: The turns of streams.
        stages: The stages that requests may ask for.
    """

    def __init__(self, parts: Parts, schedule: Schedule, stages: Stages) -> None:
        self._budget = Budget(parts.config.payload_bytes, trim=give_freed_memory_back)
        parts.metrics.watch_memory(self._budget)
        self._parts = parts
        self._streams = parts.streams
        self._schedule = schedule
        self._stages = stages
        self._shortages = ShortageWarnings()

    def find(
        self, read: Callable[[_Asked], ReadRequest], request: _Asked, caller: Caller, wait_s: float
    ) -> tuple[ReadRequest, Served]:
        """Return what a request asks to read, and the dataset or mixture; see `Stages.find`.

        It has a turn of its caller's, but not while it waits for a filter.

        Args:
            read: Returns what the request asks to read.
            request: The request.
            caller: Who asks.
            wait_s: The most seconds to wait for a filter.
        """
        with ExitStack() as turn:
            return self._find(read, request, Asker(caller, wait_s), turn)

    def _find(
        self,
        read: Callable[[_Asked], ReadRequest],
        request: _Asked,
        asker: Asker,
        turn: ExitStack,
    ) -> tuple[ReadRequest, Served]:
        """Find what a request asks to read, in a turn that is held until ``turn`` is closed."""
        take = partial(self._schedule.setup_turn, asker.caller.name)

        def narrow(member: Member, stages: Sequence[Any]) -> Member:
            turn.close()
            found = self._stages.narrowed(member, stages, asker)
            turn.enter_context(take())
            return found

        turn.enter_context(take())
        finding = Finding(self._parts.catalog.seen_by(asker.caller), narrow, self._stages.options)
        asked = replace(read(request), caller=asker.caller.name)
        return asked, self._stages.find(asked, finding)

    def messages(
        self,
        read: Callable[[_Asked], ReadRequest],
        setup: _Setup,
        request: _Asked,
        call: StreamCall,
        attach: Attach | None = None,
    ) -> Iterator[bytes]:
        """Yield the messages of a call.

        Args:
            read: Returns what its request asks to read.
            setup: Returns the contents that it asks for.
            request: The request.
            call: The call.
            attach: Attaches it to a transport; None sends all batches in its messages.

        Raises:
            HeadraceError: The call must fail, or end, with this error.
        """
        self._streams.call_began()
        if not call.on_end(self._streams.call_ended):
            self._streams.call_ended()
            return
        with ExitStack() as start:
            asked, served = self._find(read, request, Asker(call.caller, _WAIT_S), start)
            contents = setup(asked, served, self._stages)
            if contents.rank is not None:
                self._schedule.charge_stream(call.caller.name)
            is_plain = attach is None and contents.pipeline is None and contents.rank is not None
            held: ExitStack | None = start
            if not (is_plain and self._streams.are_others_here(call.caller.name)):
                start.close()
                held = None
            yield from self._opened(call, contents, served, attach, held)

    def _opened(
        self,
        call: StreamCall,
        contents: Contents,
        served: Served,
        attach: Attach | None,
        start: ExitStack | None,
    ) -> Iterator[bytes]:
        with (
            self._streams.opened(call.cut, lambda: self._lost(call, served)) as registered,
            closing(self._share(call.caller, contents, registered)) as share,
            ExitStack() as single_turn,
            ExitStack() as transport,
        ):
            opened = _Opened(call, contents, served, share, registered, single_turn, start)
            if contents.rank is None:
                single_turn.enter_context(self._schedule.single_turn(call.caller))
            attached = None
            if attach is not None:
                # Closed here, so that its end and the end of the call agree.
                attached = transport.enter_context(closing((yield from attach(contents, share))))
            yield from self._sent(opened, attached)

    def _sent(self, opened: _Opened, attached: Attached | None) -> Iterator[bytes]:
        served, call = opened.served, opened.call
        contents, cache = opened.contents, self._parts.cache
        tally = StreamTally(
            self._parts.metrics.streams, served.name, contents.rank, self._about(opened)
        )
        stream = BatchStream(
            contents,
            dataset=served.name,
            blocks=contents.blocks(cache),
            limits=self._schedule.limits(served),
            observer=tally,
            outlet=attached,
            turns=self._schedule.turns(call.caller, opened.wait_for_store),
            share=opened.share,
        )
        on_short = partial(stream.interrupt, _short_error()) if contents.is_cuttable else None
        reason, text = "CANCELLED", ""
        # Requests for single batches may be frequent.
        level = logging.DEBUG if contents.rank is None else logging.INFO
        tally.begin()
        _log.log(level, "stream opened", extra=event(**opened.fields))
        try:
            with (
                # Its messages may never be read: the client may be gone by now.
                closing(stream),
                cache.needs.held(contents.need, on_short=on_short) as shortage,
            ):
                if shortage is not None:
                    self._shortages.warn(shortage, dataset=served.name)
                    tell_shortage(contents.start, shortage)
                self._streams.begin(opened.registered, stream, served.retirements)
                ahead = partial(self._running, stream, opened)
                running = attached.running(stream, ahead) if attached else ahead()
                if not call.on_end(running.cancel):
                    return
                # Closed before the stream, which a thread of its messages may still be making.
                with closing(tally.timed(running.messages(), taken=opened.share.sent)) as timed:
                    if attached:
                        yield from attached.carried(timed)
                    else:
                        if opened.start is not None:
                            yield from _begun(timed, opened.start)
                        yield from timed
                reason = "OK" if call.is_active else "CANCELLED"
        except HeadraceError as error:
            reason, text = error.reason, error.message
            raise
        except Exception:
            reason = InternalError.reason
            raise
        finally:
            ended = {**opened.fields, "reason": reason, "error": text, **tally.close(reason)}
            _log.log(level, "stream ended", extra=event(**ended))
            if (tracing := self._parts.tracing) is not None:
                tracing.streamed(ended, call.metadata, seconds=tally.seconds, reason=reason)

    def _about(self, opened: _Opened) -> StreamAbout:
        call, start, need = opened.call, opened.contents.start, opened.contents.need
        return StreamAbout(
            call.caller.name,
            call.peer,
            opened.contents.title,
            start.epoch_sample_count,
            (start.epoch, start.position),
            partial(self._parts.cache.needs.shortage, None if need is None else need.job),
        )

    def _lost(self, call: StreamCall, served: Served) -> HeadraceError | None:
        """Return why the caller of an open stream may no longer read it; None if it may."""
        try:
            caller = call.known_caller()
        except HeadraceError as error:
            return error
        if all(caller.may_read(each.dataset) for each in served.retirements):
            return None
        return UnauthenticatedError("the caller may no longer read this")

    def _running(self, stream: BatchStream, opened: _Opened) -> Messages:
        # A single batch has no successor to make while it is sent.
        if opened.contents.rank is None:
            return stream
        free = partial(self._schedule.is_processor_free, opened.call.caller)
        return MessagesAhead(stream, is_worth_it=free)

    def _share(self, caller: Caller, contents: Contents, registered: OpenStream) -> Share:
        return Share(
            self._budget,
            caller.name,
            recall=lambda: registered.end(_recalled_error()),
            message_bytes=max(contents.max_chunk_bytes, contents.max_group_bytes),
            streams=self._parts.config.max_streams,
        )


def _begun(messages: Iterator[bytes], start: ExitStack) -> Iterator[bytes]:
    """Make the first messages, end the start, and yield them: their client may never read them."""
    begun = list(islice(messages, 2))
    start.close()
    yield from begun


def _short_error() -> RebalanceError:
    return RebalanceError(
        "the cache of this server has become too small for this stream and others together; "
        "reconnect to continue with fewer blocks in memory"
    )


def _recalled_error() -> PayloadLimitError:
    return PayloadLimitError(
        "this stream used more than its share of the server's memory, which others need; read "
        "faster, use a smaller batch, or ask the operator for more --payload-bytes"
    )
