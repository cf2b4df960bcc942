"""Ranks spread over the replicas that a name stands for, and find those that come later."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import trustme

from headrace.client import (
    BatchEvent,
    BatchReader,
    BufferPool,
    Deadlines,
    Place,
    ReadOptions,
    TlsConfig,
)
from headrace.client.options.access import Access
from headrace.client.servers.replicas import FixedEndpoints, Seat, replicas_of, seat_of
from headrace.errors import ServerUnreachableError
from headrace.order import OrderSpec
from headrace.server import Server
from support.datasets import write_dataset
from support.running import server_of
from support.waiting import until

_LAUNCHED = {"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "node", "MASTER_PORT": "29500"}
_RANKS = 6
_SAMPLES, _ROW_BYTES, _GLOBAL_BATCH = 384, 16 << 10, 96
_LOOPBACKS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def _replicas(target: str, *found: str) -> tuple[list[str], str]:
    return replicas_of(target, threading.Event(), lookup=_Name(*found).look_up)


@pytest.mark.parametrize("target", ["dns:///feed:50051", "dns:feed:50051", "feed:50051"])
def test_names_are_looked_up(target: str) -> None:
    """All forms of a name that the machine's own resolver answers for."""
    expected = ["ipv4:10.0.0.1:50051", "ipv4:10.0.0.2:50051"]

    assert (expected, "feed:50051") == _replicas(target, "10.0.0.2", "10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize(
    "target",
    [
        *("unix:/run/feed.sock", "ipv4:10.0.0.1:50051", "10.0.0.1:50051", "[::1]:50051", "feed"),
        *("dns://10.0.0.9:53/feed:50051", "xds:///feed"),
    ],
)
def test_the_rest_is_grpcs_own(target: str) -> None:
    """Nothing is looked up where there is no name, or another resolver is named."""
    assert ([], "") == _replicas(target, "10.0.0.1", "10.0.0.2")


def test_one_replica_is_left_to_grpc() -> None:
    """Also one with an address of each family, which gRPC tries side by side."""
    assert ([], "") == _replicas("feed:50051", "10.0.0.1")
    assert ([], "") == _replicas("localhost:50051", "::1", "127.0.0.1")
    found, _ = _replicas("feed:50051", "fd00::1", "fd00::2", "10.0.0.1")
    assert ["ipv6:[fd00::1]:50051", "ipv6:[fd00::2]:50051"] == found


def test_a_resolver_that_fails_is_grpcs_to_report() -> None:
    """So a name that is not there yet ends in the errors and retries of any other server."""

    def fail(host: str, port: str) -> list[str]:
        raise socket.gaierror(f"{host}:{port}")

    assert ([], "") == replicas_of("feed:50051", threading.Event(), lookup=fail)


def test_a_resolver_that_hangs_ends_with_the_reader() -> None:
    """Closing does not wait for it."""
    stop, answered = threading.Event(), threading.Event()
    stop.set()

    def hang(host: str, port: str) -> list[str]:
        answered.wait(60)
        return [host, port]

    assert ([], "") == replicas_of("feed:50051", stop, lookup=hang)
    answered.set()


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 8])
def test_ranks_of_a_job_spread_evenly(replicas: int) -> None:
    """Of any number of ranks two replicas get numbers that differ by one at most."""
    addresses = [f"10.0.0.{number}:1" for number in range(replicas)]
    for world_size in range(2, 20):
        seats = [
            seat_of(rank=rank, world_size=world_size, seed=7, environment=_LAUNCHED)
            for rank in range(world_size)
        ]
        for first in (
            [seat.of_name(addresses)[0] for seat in seats],
            [seat.of_list(addresses)[0] for seat in seats],
        ):
            counts = [first.count(address) for address in addresses]
            assert max(counts) - min(counts) <= 1


def test_ranks_agree_whatever_the_order_of_the_answer() -> None:
    """Name servers rotate what they say."""
    addresses = [f"10.0.0.{number}:1" for number in range(4)]

    assert Seat(1, 5).of_name(addresses) == Seat(1, 5).of_name(addresses[::-1])


def test_jobs_begin_at_different_replicas() -> None:
    """A thousand jobs of one rank, or of two that a launcher tells apart, spread over three."""
    addresses = ["a:1", "b:1", "c:1"]
    alone = Counter(
        seat_of(rank=0, world_size=1, seed=7).of_name(addresses)[0] for _ in range(1000)
    )
    launched = Counter(
        seat_of(rank=0, world_size=2, seed=7, environment={"RAY_JOB_ID": str(job)}).of_name(
            addresses
        )[0]
        for job in range(1000)
    )

    for counts in (alone, launched):
        assert 250 < min(counts.values()) <= max(counts.values()) < 420


def test_a_list_is_asked_from_the_rank_th_on() -> None:
    """And a rank that is alone begins at the first, as the user wrote it."""
    listed = ["a:1", "b:1", "c:1"]

    assert ["a:1", "b:1", "c:1"] == Seat(0, 99).of_list(listed)
    assert ["c:1", "a:1", "b:1"] == Seat(2).of_list(listed)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A dataset whose batches are large enough that few of them wait between server and loop."""
    where = str(tmp_path / "ds")
    rows = pa.array(np.zeros(_SAMPLES * _ROW_BYTES, np.uint8))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(rows, _ROW_BYTES)})
    write_dataset(where, table, shard_samples=[_SAMPLES], block_bytes=1 << 18)
    return where


class _Name:
    """A name whose replicas change."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    def look_up(self, host: str, port: str) -> list[str]:
        del host, port
        return list(self.addresses)


def _reader(
    port: str,
    name: _Name,
    rank: int,
    *,
    access: Access | None = None,
    host: str = "localhost",
    give_up_s: float = 60,
) -> BatchReader:
    options = ReadOptions(
        dataset="ds",
        order=OrderSpec(seed=1, unit=_GLOBAL_BATCH),
        global_batch_size=_GLOBAL_BATCH,
        rank=rank,
        world_size=_RANKS,
    )
    endpoints = FixedEndpoints(
        (f"{host}:{port}",),
        access or Access(),
        seat_of(rank=rank, world_size=_RANKS, seed=1, environment=_LAUNCHED),
        name.look_up,
    )
    deadlines = Deadlines(connect_s=give_up_s, give_up_s=give_up_s)
    return BatchReader(
        endpoints,
        options,
        place=Place(),
        deadlines=deadlines,
        allocate=BufferPool(idle_bytes=1 << 20).take,
    )


def _read_on(reader: BatchReader, wanted: threading.Event, tokens: list[bytes]) -> None:
    for event in reader.events():
        if isinstance(event, BatchEvent):
            tokens.append(event.header.resume_token)
        if wanted.wait(0.02):
            return


def test_one_replica_becomes_three_and_the_streams_even_out(url: str) -> None:
    """Six ranks under load move to two each within the time that a stream may last."""
    name = _Name(_LOOPBACKS[0])
    ended = threading.Event()
    tokens: list[list[bytes]] = [[] for _ in range(_RANKS)]
    with ExitStack() as stack:
        servers = [stack.enter_context(server_of({"ds": url}, max_stream_s=1))]
        port = servers[0].address.rpartition(":")[2]
        threads = [
            threading.Thread(
                target=_read_on,
                args=(_reader(port, name, rank), ended, tokens[rank]),
                name=f"test-rank-{rank}",
            )
            for rank in range(_RANKS)
        ]
        for thread in threads:
            stack.callback(thread.join, 30)
            thread.start()
        stack.callback(ended.set)
        assert until(lambda: [_RANKS] == _streams(servers), timeout_s=90)
        for address in _LOOPBACKS[1:]:
            listen = f"{address}:{port}"
            servers.append(
                stack.enter_context(server_of({"ds": url}, listen=listen, max_stream_s=1))
            )
        name.addresses = _LOOPBACKS
        assert until(lambda: [2, 2, 2] == _streams(servers), timeout_s=90), _streams(servers)
        # And back: the third goes, its streams at once, the rest as they are asked to come again.
        name.addresses = _LOOPBACKS[:2]
        servers.pop().drain()
        assert until(lambda: [3, 3] == _streams(servers), timeout_s=90), _streams(servers)

    for seen in tokens:
        assert len(seen) == len(set(seen)) > 0


def _streams(servers: list[Server]) -> list[int]:
    return [server.stream_count for server in servers]


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A certificate of the name, and of no address."""
    authority = trustme.CA()
    issued = authority.issue_cert("feed.test")
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    return ca, cert, key


def test_certificates_are_checked_against_the_name(
    url: str, certified: tuple[Path, Path, Path]
) -> None:
    """Not against the address that it stands for; and a certificate of another name is refused."""
    ca, cert, key = certified
    with server_of({"ds": url}, tls_cert=str(cert), tls_key=str(key)) as server:
        port = server.address.rpartition(":")[2]
        access = Access(TlsConfig(ca=ca))
        name = _Name("127.0.0.1", "127.0.0.2")
        reader = _reader(port, name, 0, access=access, host="feed.test")
        event = next(reader.events())
        reader.close()
        stranger = _reader(port, name, 0, access=access, host="other.test", give_up_s=0.5)
        with pytest.raises(ServerUnreachableError):
            next(stranger.events())

    assert isinstance(event, BatchEvent)
