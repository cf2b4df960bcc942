"""One patience for every call: what a lost server is to a stream, it is to `len` and a mixture."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from headrace.client import (
    Access,
    Deadlines,
    RemoteDataset,
    Transport,
    fetch_dataset,
)
from headrace.client.options.settings import Backoff
from headrace.client.servers.retry_policy import Patience
from headrace.errors import DatasetNotFoundError, FilterPendingError, ServerUnreachableError
from headrace.v1 import shard_service_pb2 as pb
from support.scripted_server import Describe, ScriptedService, fail, scripted_server
from support.wire import epoch_messages, start_message

LONG = Deadlines(connect_s=30)
Call = Callable[[RemoteDataset], object]


def _epoch(
    request: pb.ReadBatchesRequest, context: grpc.ServicerContext
) -> Iterator[pb.ReadBatchesResponse]:
    del request, context
    yield from [start_message(), *epoch_messages(0)]


def _state(dataset: RemoteDataset) -> None:
    dataset.state_dict()


def _first_batch(dataset: RemoteDataset) -> None:
    next(iter(dataset))
    dataset.close()


CALLS: dict[str, tuple[str | list[tuple[str, float]], Call]] = {
    "len": ("d", len),
    "state_dict": ("d", _state),
    "len of a mixture": ([("d", 1.0), ("e", 1.0)], len),
    "the first batch of a mixture": ([("d", 1.0), ("e", 1.0)], _first_batch),
}


def test_a_server_that_does_not_answer_is_named_before_the_time_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not at once, for it may just be starting; and once, however often it is asked."""
    patience = Patience(Deadlines(connect_s=30), Backoff(), reading="d")
    error = ServerUnreachableError("h:1: connection refused")

    for now in (0.0, 1.0, 2.5, 9.0):
        patience.fail(error, asked="h:1", now=now)

    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [f"no answer for 2 s, reading 'd'; trying for up to 30 s ({error})"] == warned


def test_a_wait_that_is_nearly_over_is_not_announced(caplog: pytest.LogCaptureFixture) -> None:
    """Who waits for 3 s hears of it by the error alone: one line, and not two in a second."""
    patience = Patience(Deadlines(connect_s=3), Backoff(), reading="d")
    error = ServerUnreachableError("h:1: connection refused")

    for now in (0.0, 1.0, 2.5):
        patience.fail(error, asked="h:1", now=now)

    assert not [one for one in caplog.records if one.levelno == logging.WARNING]


def test_a_filter_is_not_waited_for_beyond_the_deadline() -> None:
    """A server that asks to come back in a million years is asked again before the time is over."""
    patience = Patience(Deadlines(give_up_s=30), Backoff(), reading="d")
    error = FilterPendingError("looking", done="1 %", retry_after_s=3e13)

    assert 30.0 == patience.fail(error, asked="h:1", now=0.0)
    assert 10.0 == patience.fail(error, asked="h:1", now=20.0)


class _Failing:
    """Fails some calls, as a server does that goes away."""

    def __init__(self, *ways: tuple[grpc.StatusCode, str | None]) -> None:
        self.ways = list(ways)
        self.calls = 0

    def __call__(self, request: pb.GetDatasetRequest, context: grpc.ServicerContext) -> None:
        """Fail this one, if it is to."""
        del request
        self.calls += 1
        if self.ways:
            code, reason = self.ways.pop(0)
            wait_s = 0.01 if reason == "STREAM_LIMIT" else None
            fail(context, code, reason, retry_after_s=wait_s)


@pytest.mark.parametrize(("name", "call"), CALLS.values(), ids=CALLS)
def test_what_passes_is_waited_for(name: str | list[tuple[str, float]], call: Call) -> None:
    """Whether a connection breaks, a server drains, or it has as many callers as it takes."""
    failing = _Failing(
        (grpc.StatusCode.UNAVAILABLE, None),
        (grpc.StatusCode.UNAVAILABLE, "DRAINING"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT"),
        (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"),
    )
    with scripted_server(_epoch, describe=failing) as server:
        call(RemoteDataset(server.address, name, batch_size=4, transport=Transport(deadlines=LONG)))

    assert [] == failing.ways


@pytest.mark.parametrize(("name", "call"), CALLS.values(), ids=CALLS)
def test_a_server_that_dies_in_a_call_is_followed_by_another(
    tmp_path: Path, name: str | list[tuple[str, float]], call: Call
) -> None:
    """It ends in the middle of GetDataset; the next one of its address answers."""
    listen = f"unix:{tmp_path}/s"
    began = threading.Event()
    with ExitStack() as stack:

        def die(request: pb.GetDatasetRequest, context: grpc.ServicerContext) -> None:
            del request
            began.set()
            while context.is_active():
                time.sleep(0.001)

        def follow() -> None:
            assert began.wait(60)
            first.stop()
            stack.enter_context(scripted_server(_epoch, listen=listen))

        first = stack.enter_context(scripted_server(_epoch, listen=listen, describe=die))
        follower = threading.Thread(target=follow)
        follower.start()
        call(RemoteDataset(listen, name, batch_size=4, transport=Transport("grpc", deadlines=LONG)))
        follower.join()


def _hang(released: threading.Event) -> Describe:
    def describe(request: pb.GetDatasetRequest, context: grpc.ServicerContext) -> None:
        del request, context
        released.wait(60)

    return describe


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_one_that_hangs_does_not_take_the_time_of_the_others(order: slice) -> None:
    """Each has its share, whichever is asked first."""
    released = threading.Event()
    with scripted_server(_epoch) as well, scripted_server(_epoch, describe=_hang(released)) as ill:
        targets = [ill.address, well.address][order]
        dataset = RemoteDataset(
            targets, "d", batch_size=4, transport=Transport(deadlines=Deadlines(connect_s=3))
        )

        assert 3 == len(dataset)
        released.set()


@pytest.mark.parametrize("is_there", [False, True])
def test_it_has_an_end(*, is_there: bool) -> None:
    """After `connect_s`, whether nobody is there or somebody who hangs; with what was tried."""
    released = threading.Event()
    with scripted_server(_epoch, describe=_hang(released)) as server:
        target = server.address if is_there else "127.0.0.1:1"
        began = time.monotonic()
        with pytest.raises(ServerUnreachableError, match=f"no answer for .* at {target}") as caught:
            fetch_dataset(target, "d", deadlines=Deadlines(connect_s=0.3), access=Access())
        took_s = time.monotonic() - began
        released.set()

    assert 0.3 <= took_s < 50
    assert "the connection to the server" == caught.value.metadata["hop"]


def test_what_does_not_pass_is_raised_at_once() -> None:
    """A name that nobody serves is asked for once."""
    failing = _Failing(*[(grpc.StatusCode.NOT_FOUND, "DATASET_NOT_FOUND")] * 9)
    with scripted_server(_epoch, describe=failing) as server:
        dataset = RemoteDataset(
            server.address, "d", batch_size=4, transport=Transport(deadlines=LONG)
        )
        with pytest.raises(DatasetNotFoundError):
            len(dataset)

    assert 1 == failing.calls


def test_a_server_that_asks_for_no_wait_is_not_asked_without_end() -> None:
    """Its RetryInfo of zero seconds, again and again, is some tries a second."""
    service: list[ScriptedService] = []

    def at_once(request: pb.GetDatasetRequest, context: grpc.ServicerContext) -> None:
        del request
        service[0].requests.append(pb.ReadBatchesRequest())
        fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT", retry_after_s=0)

    with scripted_server(_epoch, describe=at_once) as server:
        service.append(server)
        dataset = RemoteDataset(
            server.address,
            "d",
            batch_size=4,
            transport=Transport(deadlines=Deadlines(connect_s=0.5)),
        )
        with pytest.raises(Exception, match="no answer for"):
            len(dataset)

        assert 2 <= len(server.requests) <= 12
