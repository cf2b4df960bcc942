"""What a loop waited for has a name."""

import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from headrace.client import Deadlines, HopSeconds, RemoteDataset, Transport
from headrace.client.feeds.wait_times import HopClock
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


def test_a_server_can_blame_its_store_for_no_more_than_the_wait() -> None:
    """What a server says about its store is taken out of the wait for the server."""
    times = iter([0.0, 0.0, 5.0, 8.0, 10.0])
    clock = HopClock(now=lambda: next(times))
    clock.enter("server")
    clock.begin_wait()
    clock.blame_store(2.0)
    clock.blame_store(60.0)

    assert HopSeconds(store=8.0, server=2.0) == clock.waited()


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
        while hop in ("server", "store") and not is_enough() and time.monotonic() < until:
            pause.wait(0.01)
            if hop == "store":
                waited_ms = int((time.monotonic() - began) * 1000)
                yield pb.ReadBatchesResponse(heartbeat=pb.Heartbeat(waiting_ms=waited_ms))
        yield first
        yield from others

    return script


def _seconds(dataset: RemoteDataset) -> dict[str, float]:
    waited = dataset.stats().waited_on
    return {name: getattr(waited, name) for name in HopSeconds.__slots__}


@pytest.mark.parametrize("hop", ["network", "server", "store"])
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


def test_waits_between_two_tries_are_the_networks() -> None:
    """A server that is away is no slow server."""

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

    assert waited.network > LONG_S * 0.9
    assert waited.server < waited.network
