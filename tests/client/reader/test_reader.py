"""A reader's events are the same whatever happens to its connections."""

import itertools
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client.feeds.feed import Event
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.settings import Backoff, Deadlines, Hedge
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.replicas import FixedEndpoints, fixed_endpoints, seat_of
from headrace.client.wire.assembler import BatchEvent
from headrace.errors import (
    CallerError,
    DatasetNotFoundError,
    ServerUnreachableError,
    ShardCorruptError,
    StoreUnavailableError,
    StreamLimitError,
)
from headrace.order import OrderSpec, decode_token
from headrace.v1 import shard_service_pb2 as pb
from support.scripted_server import Script, fail, scripted_server
from support.wire import epoch_messages, start_message, token_at

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EPOCHS = 2
Shown = tuple[str, int, int | list[int]]


def _reader(
    address: str,
    *,
    place: Place | None = None,
    connect_s: float = 60,
    silence_s: float = 60,
    give_up_s: float = 60,
    hedge: Hedge | None = None,
    moves_after: int | None = None,
) -> BatchReader:
    servers = fixed_endpoints([address], None, seat=seat_of(rank=0, world_size=1, seed=0))
    return BatchReader(
        servers if moves_after is None else _Restless(servers, moves_after),
        ReadOptions("d", OrderSpec(unit=4), 4, end_epoch=EPOCHS),
        place=place or Place(),
        deadlines=Deadlines(connect_s=connect_s, silence_s=silence_s, give_up_s=give_up_s),
        allocate=lambda size: np.empty(size, dtype=np.uint8),
        backoff=Backoff(first_s=0.001, most_s=0.01),
        hedge=hedge,
    )


class _Restless:
    """The same servers, which are left for others once, after that many events."""

    def __init__(self, servers: FixedEndpoints, events: int) -> None:
        self._servers = servers
        self._left = events
        self.names = servers.names
        self.choose, self.each = servers.choose, servers.each
        self.beside, self.close = servers.beside, servers.close

    @property
    def has_others(self) -> bool:
        return True

    def is_outdated(self, endpoint: Endpoint) -> bool:
        """Say so after the last of the events."""
        del endpoint
        self._left -= 1
        return not self._left


def _shown(events: Iterator[Event]) -> list[Shown]:
    return [
        ("batch", event.header.epoch, event.columns["x"].values.tolist())
        if isinstance(event, BatchEvent)
        else ("end", event.epoch, decode_token(event.resume_token).epoch)
        for event in events
    ]


def _all_messages(request: pb.ReadBatchesRequest) -> Iterator[pb.ReadBatchesResponse]:
    epoch, position = 0, 0
    if request.WhichOneof("start") == "resume_token":
        token = decode_token(request.resume_token)
        epoch, position = token.epoch, token.position
    assert epoch + request.epoch_count == EPOCHS
    yield start_message()
    for number in range(epoch, EPOCHS):
        yield from epoch_messages(number, position if number == epoch else 0)


def _whole(
    request: pb.ReadBatchesRequest, context: grpc.ServicerContext
) -> Iterator[pb.ReadBatchesResponse]:
    del context
    yield from _all_messages(request)


def _together(
    messages: Iterator[pb.ReadBatchesResponse], most: int
) -> Iterator[pb.ReadBatchesResponse]:
    """Put up to so many batches that follow one another into one message."""
    held: list[pb.ReadBatchesResponse] = []
    for message in messages:
        is_batch = message.WhichOneof("event") == "batch"
        if held and (not is_batch or len(held) == most):
            yield pb.ReadBatchesResponse(messages=held)
            held.clear()
        if is_batch:
            held.append(message)
        else:
            yield message


def _broken_after(
    messages: int, code: grpc.StatusCode, reason: str | None, *, together: int = 0
) -> Script:
    def script(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        sent = _all_messages(request)
        if together:
            assert request.max_group_bytes > 1 << 20
            sent = _together(sent, together)
        yield from itertools.islice(sent, messages)
        fail(context, code, reason)

    return script


UNDISTURBED: list[Shown] = [
    ("batch", 0, [0, 1, 2, 3]),
    ("batch", 0, [4, 5, 6, 7]),
    ("batch", 0, [8, 9, 10, 11]),
    ("end", 0, 1),
    ("batch", 1, [1000, 1001, 1002, 1003]),
    ("batch", 1, [1004, 1005, 1006, 1007]),
    ("batch", 1, [1008, 1009, 1010, 1011]),
    ("end", 1, 2),
]


def test_a_quiet_stream_gives_batches_and_ends() -> None:
    """Without faults one request is enough."""
    with scripted_server(_whole) as server:
        found = _shown(_reader(server.address).events())

    assert UNDISTURBED == found
    assert 1 == len(server.requests)


@pytest.mark.parametrize("events", range(1, len(UNDISTURBED)))
def test_a_move_to_another_server_does_not_show_in_the_events(events: int) -> None:
    """Also between an epoch's last batch and its end, which no server would send again."""
    with scripted_server(_whole) as server:
        found = _shown(_reader(server.address, moves_after=events).events())

    assert UNDISTURBED == found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cuts=st.lists(st.integers(0, 8), max_size=6),
    fault=st.sampled_from(
        [
            (UNAVAILABLE, "DRAINING"),
            (UNAVAILABLE, "REBALANCE"),
            (UNAVAILABLE, None),
            (grpc.StatusCode.UNKNOWN, None),
            (grpc.StatusCode.INTERNAL, None),
        ]
    ),
    together=st.integers(0, 3),
)
def test_broken_streams_do_not_show_in_the_events(
    cuts: list[int], fault: tuple[grpc.StatusCode, str | None], together: int
) -> None:
    """Wherever streams break, also at an epoch's end, the events are the undisturbed ones.

    However many batches come in one message.
    """
    scripts = [_broken_after(cut, *fault, together=together) for cut in cuts]
    with scripted_server(*scripts, _whole) as server:
        found = _shown(_reader(server.address).events())

    assert UNDISTURBED == found


def test_it_goes_on_from_the_token_of_the_last_batch_received() -> None:
    """The second request carries the token of the second batch."""
    with scripted_server(_broken_after(3, UNAVAILABLE, "DRAINING"), _whole) as server:
        list(_reader(server.address).events())

    assert token_at(0, 8, step=2) == server.requests[1].resume_token
    assert EPOCHS == server.requests[1].epoch_count


def test_a_damaged_payload_is_read_again() -> None:
    """A batch whose checksum fails is not handed over; the stream starts again before it."""

    def damaged(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del context
        for index, message in enumerate(_all_messages(request)):
            if index == 2:
                message.payload = bytes(len(message.payload))
            yield message

    with scripted_server(damaged, _whole) as server:
        found = _shown(_reader(server.address).events())

    assert UNDISTURBED == found


def test_of_a_message_with_a_damaged_batch_those_before_it_stand() -> None:
    """The stream starts again behind them."""

    def damaged(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del context
        for message in _together(_all_messages(request), 3):
            if message.messages:
                message.messages[1].payload = bytes(len(message.messages[1].payload))
            yield message

    with scripted_server(damaged, _whole) as server:
        found = _shown(_reader(server.address).events())

    assert UNDISTURBED == found
    assert token_at(0, 4, step=1) == server.requests[1].resume_token


def test_a_reader_that_hedges_gets_each_batch_by_itself() -> None:
    """Else all but one of a message would come at once, and the next message look late."""
    with scripted_server(_whole) as server:
        for hedge in (None, Hedge()):
            list(_reader(server.address, hedge=hedge).events())

    assert [True, False] == [request.max_group_bytes > 0 for request in server.requests]


def test_a_corrupt_shard_is_raised_at_once_with_its_place() -> None:
    """DATA_LOSS is never retried."""

    def corrupt(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del request
        yield start_message()
        fail(context, grpc.StatusCode.DATA_LOSS, "SHARD_CORRUPT", shard="s1", offset="64")

    with (
        scripted_server(corrupt) as server,
        pytest.raises(ShardCorruptError, match="scripted") as error,
    ):
        list(_reader(server.address).events())

    assert {"shard": "s1", "offset": "64"} == error.value.metadata
    assert 1 == len(server.requests)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, "DATASET_NOT_FOUND", DatasetNotFoundError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT", StreamLimitError),
        (grpc.StatusCode.UNIMPLEMENTED, None, CallerError),
        (grpc.StatusCode.UNAUTHENTICATED, None, CallerError),
    ],
)
def test_what_will_not_pass_is_raised_at_once(
    code: grpc.StatusCode, reason: str | None, error: type[Exception]
) -> None:
    """An error of the table comes out as its class, with one request made."""
    with scripted_server(_broken_after(1, code, reason)) as server, pytest.raises(error):
        list(_reader(server.address).events())

    assert 1 == len(server.requests)


def test_a_full_server_is_asked_again_after_the_time_it_names() -> None:
    """RESOURCE_EXHAUSTED with RetryInfo is waited for as told."""

    def full(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del request
        yield start_message()
        fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT", retry_after_s=0.2)

    with scripted_server(full, _whole) as server:
        start = time.monotonic()
        found = _shown(_reader(server.address).events())
        waited = time.monotonic() - start

    assert UNDISTURBED == found
    assert waited >= 0.2


def test_a_silent_stream_is_cancelled_and_opened_again() -> None:
    """A server that says nothing, not even a heartbeat, is left after silence_s."""
    released = threading.Event()

    def silent(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del context
        yield from itertools.islice(_all_messages(request), 2)
        released.wait(60)

    with scripted_server(silent, _whole) as server:
        found = _shown(_reader(server.address, silence_s=0.2).events())
        released.set()

    assert UNDISTURBED == found


def test_heartbeats_alone_keep_no_stream_open() -> None:
    """A server that says for ever that it waits is given up after give_up_s, and never sooner."""
    released = threading.Event()

    def alive(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del context
        yield from itertools.islice(_all_messages(request), 2)
        while not released.wait(0.02):
            yield pb.ReadBatchesResponse(heartbeat=pb.Heartbeat(waiting_ms=20))

    with scripted_server(alive) as server:
        reader = _reader(server.address, give_up_s=0.5)
        start = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"no batch for .* heartbeats"):
            list(reader.events())
        waited = time.monotonic() - start
        released.set()

    assert 0.5 <= waited < 50.0


def test_a_slow_consumer_is_no_silent_server() -> None:
    """Time that the caller takes for itself does not count as silence."""
    with scripted_server(_whole) as server:
        reader = _reader(server.address, silence_s=1.0)
        events = reader.events()
        first = next(events)
        threading.Event().wait(1.5)
        rest = list(events)

    assert 0 == reader.reconnect_count
    assert 8 == len([first, *rest])


def test_nobody_listening_is_an_error_that_names_the_address() -> None:
    """It gives up after connect_s and says whom it asked, how often, for how long."""
    with scripted_server(_whole) as server:
        address = server.address

    with pytest.raises(
        ServerUnreachableError,
        match=rf"no answer for .* (try|tries) at {address} \(\d+\), reading 'd'; "
        r".*: no headrace server",
    ):
        list(_reader(address, connect_s=0.3).events())


def test_closing_ends_a_wait_at_once() -> None:
    """Close cancels the call that the reader waits on."""
    started, released = threading.Event(), threading.Event()

    def hanging(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del request, context
        yield start_message()
        started.set()
        released.wait(60)

    with scripted_server(hanging) as server:
        reader = _reader(server.address)
        thread = threading.Thread(target=lambda: list(reader.events()), name="reading")
        thread.start()
        assert started.wait(60)
        reader.close()
        thread.join(60)
        released.set()

    assert not thread.is_alive()


def test_a_run_that_is_over_asks_nobody() -> None:
    """At the end of the last epoch there is nothing to read."""
    place = Place(EPOCHS, 0, token_at(EPOCHS, 0))

    assert [] == list(_reader("127.0.0.1:1", place=place).events())
