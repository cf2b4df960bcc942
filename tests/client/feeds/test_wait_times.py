"""What a loop waited for has a name."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import grpc
import pytest

from headrace.client import Deadlines, HopSeconds, RemoteDataset, Transport
from headrace.client.feeds.blame import culprit_of
from headrace.client.feeds.wait_times import HopClock
from headrace.client.servers.failed_hop import silent_hop
from headrace.v1 import shard_service_pb2 as pb
from support.scripted_server import Script, fail, scripted_server
from support.wire import epoch_messages, start_message

LONG_S = 0.3
# A hop that is not slow by then is not counted where it belongs.
MOST_S = 60.0


def test_a_phase_under_way_counts_until_now() -> None:
    """A reading in the middle of a phase has its seconds so far, of that phase alone."""
    times = iter([0.0, 1.0, 4.0, 6.0])
    clock = HopClock(now=lambda: next(times))
    clock.enter("network")
    clock.begin_wait()
    clock.enter("server")

    assert HopSeconds(network=3.0, server=2.0) == clock.waited()


def test_time_in_which_nobody_waits_is_not_counted() -> None:
    """A phase that began before a wait, or goes on after it, counts for as long as the wait."""
    times = iter([0.0, 5.0, 7.0, 20.0, 21.0])
    clock = HopClock(now=lambda: next(times))
    clock.enter("server")
    for _ in range(2):
        clock.begin_wait()
        clock.end_wait()

    assert HopSeconds(server=3.0) == clock.waited()


def test_a_server_accounts_for_no_more_than_the_wait() -> None:
    """What it says beyond that was not waited for, whatever it says; the rest is the network's."""
    times = iter([0.0, 0.0, 5.0, 8.0, 10.0])
    clock = HopClock(now=lambda: next(times))
    clock.await_answer()
    clock.begin_wait()
    clock.account(store=1.0, decode=0.5, server=0.5)
    clock.account(store=30.0, decode=10.0, server=20.0)

    assert HopSeconds(store=2.5, decode=1.0, server=1.5, network=5.0) == clock.waited()


def test_a_wait_after_a_failure_belongs_to_what_failed() -> None:
    """Up to the next batch, also what the next server has to wait for; then no longer."""
    times = iter([0.0, 0.0, 1.0, 3.0, 5.0, 6.0, 8.0, 12.0])
    clock = HopClock(now=lambda: next(times))
    clock.await_answer()
    clock.begin_wait()
    clock.fail("server")
    clock.fail("network")
    clock.account(store=2.0, decode=0.0, server=0.0)
    clock.enter("client")
    clock.succeed()
    clock.await_answer()

    assert HopSeconds(server=6.0, client=2.0, network=4.0) == clock.waited()


def test_what_was_waited_for_lately_is_told_with_its_step() -> None:
    """Of ten seconds: what came before them is forgotten, and the longest wait is kept."""
    now = 0.0
    clock = HopClock(now=lambda: now)
    clock.await_answer()
    for step in range(30):
        now += 1.0
        clock.begin_wait()
        now += 3.0 if step == 25 else 0.5
        clock.end_wait()
        clock.note_wait(3.0 if step == 25 else 0.5, partial(int, step))
    recent = clock.recent()

    assert 25 == recent.step
    assert 3.0 == recent.step_s
    assert 10.0 <= recent.seconds < 15
    assert 3.0 + 4 * 0.5 <= recent.waited.network < 7
    assert ("network", 0.5) == pytest.approx((culprit_of(recent).hop, 0.5))
    now += 60.0
    assert 0.0 == sum(clock.recent().waited)
    assert "trainer" == culprit_of(clock.recent()).hop


def test_the_hop_that_keeps_silent_is_found() -> None:
    """A host that answers has a server that is stuck; where nothing answers it is the network."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert "server" == silent_hop(address)
        # Linux drops what a queue of connections has no room for.
        with ExitStack() as held:
            for _ in range(4):
                full = held.enter_context(socket.socket())
                full.setblocking(False)
                full.connect_ex(listening.getsockname())
            assert "network" == silent_hop(address)


def _slow(hop: str, is_enough: Callable[[], bool]) -> Script:
    def script(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del request, context
        pause, until = threading.Event(), time.monotonic() + MOST_S
        if hop == "network":
            while not is_enough() and time.monotonic() < until:
                pause.wait(0.01)
        yield start_message()
        first, *others = epoch_messages(0, 0)
        began = time.monotonic()
        while hop in ("server", "decode", "store") and not is_enough() and time.monotonic() < until:
            pause.wait(0.01)
            waited_ms = int((time.monotonic() - began) * 1000)
            began = time.monotonic()
            said = pb.Heartbeat(waiting_ms=waited_ms, **{f"{hop}_ms": waited_ms})
            yield pb.ReadBatchesResponse(heartbeat=said)
        yield first
        yield from others

    return script


def _seconds(dataset: RemoteDataset) -> dict[str, float]:
    waited = dataset.stats().waited_on
    return waited._asdict()


@pytest.mark.parametrize("hop", ["network", "server", "decode", "store"])
def test_stats_name_the_hop_that_was_waited_for(hop: str) -> None:
    """A slow store, a slow server and a slow connection are told apart."""
    datasets: list[RemoteDataset] = []

    def is_enough() -> bool:
        # However long a machine takes for the other hops: this one is slower.
        seconds = _seconds(datasets[0])
        mine = seconds.pop(hop)
        return mine > max(LONG_S, 3 * sum(seconds.values()))

    with scripted_server(_slow(hop, is_enough)) as server:
        dataset = RemoteDataset(server.address, "d", batch_size=4, epochs=1)
        datasets.append(dataset)
        list(dataset)
        stats, seconds = dataset.stats(), _seconds(dataset)
        dataset.close()

    assert hop == max(seconds, key=lambda name: seconds[name]), seconds
    assert LONG_S * 0.9 < stats.waited_s
    assert sum(seconds.values()) == pytest.approx(stats.waited_s, abs=0.2, rel=0.3)


def test_waits_between_two_tries_are_those_for_what_failed() -> None:
    """A server that refuses a stream is what the loop waits for."""

    def away(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del request
        yield start_message()
        fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT", retry_after_s=LONG_S)

    with scripted_server(away, _slow("none", lambda: True)) as server:
        dataset = RemoteDataset(
            server.address,
            "d",
            batch_size=4,
            epochs=1,
            transport=Transport(deadlines=Deadlines(connect_s=10)),
        )
        list(dataset)
        waited = dataset.stats().waited_on
        dataset.close()

    assert waited.server > LONG_S * 0.9
    assert waited.network < waited.server
