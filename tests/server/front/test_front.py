"""Tests of the front: calls before and after their request, over real sockets."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from attacks.http2 import ACK, PING, RST_STREAM, call, connected, frame, header_block
from headrace.server import ServerConfig
from headrace.server.front.descriptors import most_connections, most_fetch_threads
from headrace.server.front.methods import MAX_QUEUED_BYTES, MAX_QUEUED_CALLS, Pool
from headrace.server.front.tallied import TalliedLog
from headrace.server.front.waiting import Waiting
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.running import Running
from support.served import TIMEOUT_S, detail, failure_of, messages_of, stub_of
from support.waiting import until

_SERVICE = "/headrace.v1.ShardService"
_METHODS = (
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    *(
        f"{_SERVICE}/{name}"
        for name in (
            "ListDatasets",
            "GetDataset",
            "ExplainBatch",
            "FindSamples",
            "ReadBatches",
            "AttachTransport",
            "GetBatch",
            "GetSamples",
        )
    ),
)
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def _half_open(channel: grpc.Channel, methods: tuple[str, ...]) -> Iterator[list[Any]]:
    """Open calls whose request does not come until the block ends."""
    over: queue.SimpleQueue[None] = queue.SimpleQueue()

    def nothing() -> Iterator[bytes]:
        over.get()
        yield from ()

    asks: list[Any] = [channel.stream_stream(method, None, None) for method in methods]
    calls = [ask(nothing()) for ask in asks]
    try:
        yield calls
    finally:
        for call in calls:
            call.cancel()
            over.put(None)


def _failure(call: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value


def _server_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-")}


def test_calls_without_a_request_hold_no_thread(start: StartServer) -> None:
    """With 12 of each method open, no thread has been started for them, and all else answers."""
    running = start(max_streams=2)
    before = _server_threads()
    with _half_open(running.channel, _METHODS * 12):
        assert until(lambda: running.server._waiting.count == 12 * len(_METHODS))

        assert before >= _server_threads()
        check = health_pb2_grpc.HealthStub(running.channel).Check
        assert _SERVING == check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status
        assert stub_of(running.channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S)
        request = pb.GetBatchRequest(
            dataset="rich", global_batch_size=10, world_size=1, epoch_start=pb.EpochStart()
        )
        assert list(stub_of(running.channel).GetBatch(request, timeout=TIMEOUT_S))
    assert until(lambda: not running.server._waiting.count)


def test_a_request_that_does_not_come_ends_the_call(start: StartServer) -> None:
    """After its time each call ends with REQUEST_MISSING, and may be tried again at once."""
    running = start(request_timeout_s=0.2)
    with _half_open(running.channel, _METHODS) as calls:
        errors = [_failure(call) for call in calls]

    seen = {(failure_of(error)[0], failure_of(error)[1].reason) for error in errors}
    assert {(grpc.StatusCode.UNAVAILABLE, "REQUEST_MISSING")} == seen
    for error in errors:
        retry: Any = detail(error, "RetryInfo")
        assert 0 == retry.retry_delay.ToMilliseconds()


def test_the_oldest_of_too_many_calls_without_a_request_gives_way(start: StartServer) -> None:
    """Where 4 may wait, 100 leave 4; the others were told to wait, and the server goes on."""
    running = start()
    running.server._waiting._most = 4
    with _half_open(running.channel, (f"{_SERVICE}/GetDataset",) * 100) as calls:
        errors = [_failure(call) for call in calls[:60]]
        assert stub_of(running.channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S)
        assert 4 >= running.server._waiting.count

    seen = {(failure_of(error)[0], failure_of(error)[1].reason) for error in errors}
    assert {(grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER_BUSY")} == seen
    assert detail(errors[0], "RetryInfo") is not None


def test_an_unknown_caller_is_told_before_its_request(start: StartServer, tmp_path: Path) -> None:
    """A call with a token that is not known ends though its request never comes."""
    tokens = tmp_path / "tokens.json"
    tokens.write_text('{"tokens": [{"name": "a", "token": "0123456789abcdef", "datasets": ["*"]}]}')
    running = start(tokens=str(tokens), request_timeout_s=TIMEOUT_S)
    methods = tuple(method for method in _METHODS if method.startswith(_SERVICE))
    with _half_open(running.channel, methods) as calls:
        seen = [failure_of(_failure(call)) for call in calls]

    assert {grpc.StatusCode.UNAUTHENTICATED} == {code for code, _ in seen}
    assert {"UNAUTHENTICATED"} == {info.reason for _, info in seen}


@pytest.mark.parametrize("method", [one for one in _METHODS if "Reflection" not in one])
def test_a_call_that_ends_without_a_request_is_told_so(served: Running, method: str) -> None:
    """Its sending end is closed and nothing was sent: REQUEST_MALFORMED, at once."""
    ask: Any = served.channel.stream_stream(method, None, None)

    code, info = failure_of(_failure(ask(iter(()), timeout=TIMEOUT_S)))

    assert (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_MALFORMED") == (code, info.reason)


def test_calls_that_their_client_resets_are_no_failures(start: StartServer) -> None:
    """Of 500 that are reset as they are opened none is counted; the next call is answered."""
    running = start()
    block = header_block(f"{_SERVICE}/ListDatasets")
    host, _, port = running.server.address.rpartition(":")

    with connected((host, int(port))) as connection:
        frames = (
            call(stream, block, b"") + frame(RST_STREAM, 0, stream, (8).to_bytes(4))
            for stream in range(1, 1000, 2)
        )
        connection.sendall(b"".join(frames))
        # gRPC's answer to it comes when it has read what is before it.
        connection.sendall(frame(PING, 0, 0, bytes(8)))
        until(lambda: frame(PING, ACK, 0, bytes(8)) in connection.recv(1 << 16))
    # The calls of a method are looked at in turn.
    assert (
        stub_of(running.channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S).datasets
    )

    families = running.server._metrics.registry.collect()
    failed = [one for family in families for one in family.samples if "failed_calls" in one.name]
    assert [] == failed


def test_malformed_requests_are_one_counted_line(
    start: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A hundred of them are INVALID_ARGUMENT each, counted, and one line of the log."""
    running = start()
    caplog.set_level(logging.INFO)
    for number in range(100):
        ask: Any = running.channel.unary_stream(_METHODS[number % len(_METHODS)], None, None)
        code, info = failure_of(_failure(ask(b"\xff\xff", timeout=TIMEOUT_S)))
        assert (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_MALFORMED") == (code, info.reason)

    registry = running.server._metrics.registry
    labels = {"reason": "REQUEST_MALFORMED"}
    assert 100.0 == registry.get_sample_value("headrace_failed_calls_total", labels)
    lines = [record for record in caplog.records if "malformed" in record.getMessage()]
    assert [None] == [line.exc_info for line in lines]
    assert not [record for record in caplog.records if record.exc_info]


def test_an_unknown_service_is_not_found(served: Running) -> None:
    """As the standard service says."""
    check = health_pb2_grpc.HealthStub(served.channel).Check
    with pytest.raises(grpc.RpcError) as caught:
        check(health_pb2.HealthCheckRequest(service="nothing"), timeout=TIMEOUT_S)

    assert grpc.StatusCode.NOT_FOUND == caught.value.code()


def test_reflection_answers_one_question_after_the_other(served: Running) -> None:
    """And ends well when the caller has asked all it wants to."""
    stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    ask = reflection_pb2.ServerReflectionRequest
    questions = [
        ask(list_services=""),
        ask(file_containing_symbol="headrace.v1.ShardService"),
        ask(file_by_filename="nothing.proto"),
    ]

    answers = list(stub.ServerReflectionInfo(iter(questions), timeout=TIMEOUT_S))

    names = {service.name for service in answers[0].list_services_response.service}
    assert {"headrace.v1.ShardService", "grpc.health.v1.Health"} < names
    assert answers[1].file_descriptor_response.file_descriptor_proto
    assert grpc.StatusCode.NOT_FOUND.value[0] == answers[2].error_response.error_code


def test_a_method_that_is_not_there_is_unimplemented(served: Running) -> None:
    """As gRPC has it."""
    ask: Any = served.channel.unary_stream(f"{_SERVICE}/Nothing", None, None)

    assert grpc.StatusCode.UNIMPLEMENTED == _failure(ask(b"", timeout=TIMEOUT_S)).code()


def test_calls_past_the_queue_are_told_to_wait(start: StartServer) -> None:
    """Where as many calls wait for a thread as may, the next ends with SERVER_BUSY."""
    running = start()
    running.server._pools.unary._lines._most = 0

    with pytest.raises(grpc.RpcError) as caught:
        stub_of(running.channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S)

    code, info = failure_of(caught.value)
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER_BUSY") == (code, info.reason)
    assert detail(caught.value, "RetryInfo") is not None


class _Waiter:
    def __init__(self, said: list[tuple[int, bool]], number: int, line: str = "a") -> None:
        self._said = said
        self._number = number
        self.line = line

    def give_up(self, *, for_room: bool) -> None:
        self._said.append((self._number, for_room))


class _Broken:
    line = "a"

    def give_up(self, *, for_room: bool) -> None:
        raise ZeroDivisionError(for_room)


def test_a_call_that_cannot_be_given_up_keeps_no_other_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread goes on: the next call is given up in its time, and the rest is done."""
    given_up, done = threading.Event(), threading.Event()

    class _Fine:
        line = "a"

        def give_up(self, *, for_room: bool) -> None:
            if not for_room:
                given_up.set()

    waiting = Waiting(most=2, timeout_s=0.0, also=[done.set])
    waiting.add(_Broken())
    waiting.start()
    assert done.wait(TIMEOUT_S)
    waiting.add(_Fine())
    was_given_up = given_up.wait(TIMEOUT_S)
    waiting.close()

    assert was_given_up
    assert "bug of headrace" in caplog.text


def test_who_waits_longest_gives_way() -> None:
    """One too many ends the oldest; time ends what is as old as it may be, and no other."""
    said: list[tuple[int, bool]] = []
    now = [0.0]
    waiting = Waiting(most=2, timeout_s=10.0, now=lambda: now[0])
    calls = [_Waiter(said, number) for number in range(4)]
    waiting.add(calls[0])
    now[0] = 1.0
    waiting.add(calls[1])
    waiting.add(calls[0])  # again: now it is the younger one
    waiting.add(calls[2])
    assert [(1, True)] == said

    now[0] = 5.0
    waiting.remove(calls[2])
    waiting.remove(calls[2])
    waiting.add(calls[3])
    now[0] = 11.0
    waiting.give_up_late()

    assert [(1, True), (0, False)] == said
    assert 1 == waiting.count


def test_many_that_wait_end_none_of_another_line() -> None:
    """The line with the most waiting calls gives up its oldest, though another waits longer."""
    said: list[tuple[int, bool]] = []
    waiting = Waiting(most=3, timeout_s=10.0)
    honest = _Waiter(said, 0, "honest")
    waiting.add(honest)
    for number in range(1, 6):
        waiting.add(_Waiter(said, number, "many"))

    assert [(1, True), (2, True), (3, True)] == said
    waiting.remove(honest)
    assert 2 == waiting.count


def test_a_queue_is_bounded_in_calls_and_in_bytes() -> None:
    """What does not fit is refused; what has begun counts no more; nobody has more than half."""
    pool = Pool("test", 1)
    calls, size = MAX_QUEUED_CALLS // 2, MAX_QUEUED_BYTES // 2
    begun, go = threading.Event(), threading.Event()

    def stand() -> None:
        begun.set()
        go.wait(TIMEOUT_S)

    asked = (("a", size - 1), ("a", 2), ("a", 1), ("b", size), ("c", 1))
    try:
        assert pool.submit(stand, caller="a", request_bytes=size)
        assert begun.wait(TIMEOUT_S)
        assert [True, False, True, True, False] == [
            pool.submit(_nothing, caller=caller, request_bytes=size) for caller, size in asked
        ]
        few = [pool.submit(_nothing, caller="d", request_bytes=0) for _ in range(calls + 1)]
        assert [*[True] * calls, False] == few
    finally:
        go.set()
        pool.shutdown()


def test_callers_have_their_turns_in_a_queue() -> None:
    """One call of each caller at a time, and those of one caller in the order of their coming."""
    pool = Pool("test", 1)
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def stand() -> None:
        begun.set()
        go.wait(TIMEOUT_S)

    pool.submit(stand, caller="a", request_bytes=0)
    assert begun.wait(TIMEOUT_S)
    for name in ("a1", "a2", "a3", "a4", "b1", "c1", "c2"):
        pool.submit(partial(done.append, name), caller=name[0], request_bytes=0)
    go.set()
    pool.shutdown()

    assert ["a1", "b1", "c1", "a2", "c2", "a3", "a4"] == done


def test_long_calls_of_one_caller_leave_threads_for_others() -> None:
    """A call that its caller's others keep waiting runs when one of them is done."""
    pool = Pool("test", 2, most_running=1)
    go, other, last = threading.Event(), threading.Event(), threading.Event()

    def stand() -> None:
        go.wait(TIMEOUT_S)

    try:
        pool.submit(stand, caller="a", request_bytes=0)
        pool.submit(last.set, caller="a", request_bytes=0)
        pool.submit(other.set, caller="b", request_bytes=0)
        assert other.wait(TIMEOUT_S)
        assert not last.is_set()
        go.set()
        assert last.wait(TIMEOUT_S)
    finally:
        go.set()
        pool.shutdown()


class _Call:
    """Something that can be referred to weakly."""


def _nothing() -> None:
    pass


def test_a_log_of_many_has_one_line_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """With how many there were since the last."""
    now = [0.0]
    log = TalliedLog(logging.getLogger("headrace.test"), "%d, %s", now=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        log.add(f"at {second}")

    assert ["1, at 0", "10, at 10", "10, at 20"] == [one.getMessage() for one in caplog.records]


def test_a_cut_stream_ends_its_generator(start: StartServer) -> None:
    """A caller that goes in the middle leaves no stream and no call behind."""
    running = start()
    with ExitStack() as stack:
        request = pb.ReadBatchesRequest(
            dataset="rich", global_batch_size=10, world_size=1, epoch_start=pb.EpochStart()
        )
        call: Any = messages_of(running.channel, request)
        stack.callback(call.cancel)
        next(call)
        assert 1 == running.server.stream_count

    assert until(lambda: not (running.server.stream_count or running.server.open_call_count))


def _is_closed(connection: socket.socket) -> bool:
    try:
        # What gRPC says first, and then the end.
        while connection.recv(1000):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_a_reserve_of_files_is_kept() -> None:
    """Half of what is not the server's own is the clients'; there are always 16 connections."""
    config = ServerConfig(datasets={"a": "/a"}, fetch_threads=16)
    rings = ServerConfig(datasets={"a": "/a"}, listen="unix:/s", fetch_threads=16, max_streams=10)
    many = ServerConfig(datasets={"a": "/a"}, fetch_threads=64)

    assert 256 - 64 - 64 == most_connections(config, 256)
    assert 256 - 64 - 64 - 30 == most_connections(rings, 256)
    assert (96, 24) == (most_connections(many, 256), most_fetch_threads(many, 256))
    assert (1024 - 64 - 256, 64) == (most_connections(many, 1024), most_fetch_threads(many, 1024))
    assert 16 == most_connections(config, 64)
    assert 1 == most_fetch_threads(config, 64)
    assert 16_384 == most_connections(config, 1 << 20)
