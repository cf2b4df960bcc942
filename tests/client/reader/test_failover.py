"""Whatever breaks, the loop gets the same batches in the same order, by digest."""

import hashlib
import itertools
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace.client import Batch, Deadlines, Fallback, RemoteDataset, Transport
from headrace.errors import (
    BadArgumentError,
    NotADatasetError,
    ServerUnreachableError,
)
from headrace.loadtest import Cut, FaultyProxy
from headrace.server import Server
from support.command import serving
from support.datasets import write_rows
from support.private import server_pids
from support.proxy import proxied
from support.running import server_of

SAMPLES, WIDTH, BATCH = 4096, 1024, 16
NAME = "d"
QUICK = Deadlines(connect_s=200, silence_s=0.5, give_up_s=200, fallback_s=0.3)
# Where a server that a busy machine keeps waiting must not count as silent.
PATIENT = Deadlines(connect_s=200, silence_s=200, give_up_s=200)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """16 MiB: more than all buffers between a server and a loop hold."""
    url = str(tmp_path_factory.mktemp("failover") / NAME)
    write_rows(url, sample_count=SAMPLES, width=WIDTH)
    return url


@pytest.fixture(scope="module")
def undisturbed(url: str) -> list[str]:
    """The digest of each batch of one epoch."""
    with _server(url) as server:
        dataset = _dataset(server.address)
        digests = [_digest(batch) for batch in dataset]
        dataset.close()
    assert SAMPLES // BATCH == len(digests)
    return digests


def _server(url: str, **settings: object) -> Server:
    return server_of({NAME: url}, **settings)


def _way(deadlines: Deadlines = QUICK, *, fallback: Fallback | None = None) -> Transport:
    return Transport(prefetch_bytes=0, deadlines=deadlines, fallback=fallback)


def _dataset(*targets: str, **options: object) -> RemoteDataset:
    defaults: dict[str, object] = {
        "batch_size": BATCH,
        "epochs": 1,
        "transport": _way(),
    }
    return RemoteDataset(list(targets), NAME, **{**defaults, **options})  # type: ignore[arg-type] # tests name the options they mean


def _digest(batch: Batch) -> str:
    x = batch["x"]
    assert isinstance(x, torch.Tensor)
    return hashlib.sha256(x.numpy().tobytes() + batch.token).hexdigest()


def _take(batches: Iterator[Batch], count: int) -> list[str]:
    return [_digest(batch) for batch in itertools.islice(batches, count)]


def test_a_killed_server_that_is_replaced(url: str, undisturbed: list[str]) -> None:
    """SIGKILL, and another process at the address some time later."""
    with serving({NAME: url}) as first, proxied(first.address) as proxy:
        dataset = _dataset(proxy.address)
        batches = iter(dataset)
        seen = _take(batches, 20)
        first.process.kill()
        first.process.wait(60)
        with serving({NAME: url}) as second:
            proxy.upstream = second.address
            seen += [_digest(batch) for batch in batches]
            tries = dataset.stats().reconnect_count
            dataset.close()

    assert undisturbed == seen
    assert tries >= 1


def test_a_killed_server_with_a_replica(url: str, undisturbed: list[str]) -> None:
    """With a second address the stream goes on there, also when the first never comes back."""
    with serving({NAME: url}) as first, _server(url) as second:
        dataset = _dataset(first.address, second.address)
        batches = iter(dataset)
        seen = _take(batches, 20)
        first.process.kill()
        seen += [_digest(batch) for batch in batches]
        tries = dataset.stats().reconnect_count
        dataset.close()

    assert undisturbed == seen
    assert tries >= 1


def test_a_drained_server(
    url: str, undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A server that drains sends the stream to the other, and one fault is one line of the log."""
    with _server(url) as first, _server(url) as second:
        dataset = _dataset(first.address, second.address, transport=_way(PATIENT))
        batches = iter(dataset)
        seen = _take(batches, 20)
        drain = threading.Thread(target=first.drain, name="drain")
        drain.start()
        seen += [_digest(batch) for batch in batches]
        drain.join(60)
        dataset.close()

    assert undisturbed == seen
    assert 1 == sum("reconnecting" in record.message for record in caplog.records)


def test_streams_that_are_told_to_go_elsewhere(
    url: str, undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """REBALANCE after each batch or so costs no warning and no batch."""
    with _server(url, max_stream_s=0.02) as server:
        dataset = _dataset(server.address, transport=_way(PATIENT))
        seen = [_digest(batch) for batch in dataset]
        tries = dataset.stats().reconnect_count
        dataset.close()

    assert undisturbed == seen
    assert tries >= 1
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


def _read_over_a_cut(url: str, seconds: float, deadlines: Deadlines) -> tuple[list[str], int]:
    """Return the digests of an epoch whose network is cut in its middle, and the new streams."""
    with _server(url) as server, proxied(server.address) as proxy:
        dataset = _dataset(proxy.address, transport=_way(deadlines))
        batches = iter(dataset)
        seen = _take(batches, 20)
        proxy.cut()
        mend = threading.Timer(seconds, proxy.mend)
        mend.start()
        seen += [_digest(batch) for batch in batches]
        mend.join()
        tries = dataset.stats().reconnect_count
        dataset.close()
    return seen, tries


def test_a_network_that_is_cut(url: str, undisturbed: list[str]) -> None:
    """Silence for longer than silence_s ends the stream; it goes on when the network is back."""
    seen, tries = _read_over_a_cut(url, 2.0, QUICK)

    assert undisturbed == seen
    assert tries >= 1


@pytest.mark.long
@pytest.mark.parametrize("silence_s", [5.0, 30.0])
def test_a_network_that_is_cut_for_20_s(url: str, undisturbed: list[str], silence_s: float) -> None:
    """The same for 20 s, with the deadlines that a user has unless he says otherwise, and less."""
    seen, tries = _read_over_a_cut(url, 20.0, Deadlines(silence_s=silence_s))

    assert undisturbed == seen
    assert (silence_s < 20) == (tries > 0)


def test_a_server_that_is_far_away(url: str, undisturbed: list[str]) -> None:
    """A connection over 0.3 s there and back, as between continents, is made at the first try."""
    with _server(url) as server, FaultyProxy(server.address) as proxy:
        proxy.apply(Cut("latency", 0.15))
        dataset = _dataset(proxy.address, transport=_way(PATIENT))
        seen = _take(iter(dataset), 3)
        tries = dataset.stats().reconnect_count
        dataset.close()

    assert undisturbed[:3] == seen
    assert 0 == tries


def test_connections_that_are_reset_in_a_message(url: str, undisturbed: list[str]) -> None:
    """RST in the middle of a batch, five times, at odd places."""
    with _server(url) as server, proxied(server.address) as proxy:
        proxy.reset_after = [100_003, 1_000_033, 70_001, 3_000_017, 333_667]
        dataset = _dataset(proxy.address)
        seen = [_digest(batch) for batch in dataset]
        tries = dataset.stats().reconnect_count
        dataset.close()

    assert undisturbed == seen
    assert tries >= 5


def test_giving_up_says_hop_time_and_tries(url: str) -> None:
    """Who reads it at night knows what fails, since when, and what was tried."""
    with _server(url) as server:
        dataset = _dataset(
            server.address,
            "127.0.0.1:1",
            transport=Transport(
                prefetch_bytes=0, deadlines=Deadlines(connect_s=60, silence_s=60, give_up_s=0.5)
            ),
        )
        batches = iter(dataset)
        next(batches)
        server.stop()
        with pytest.raises(
            ServerUnreachableError,
            match=r"no batch for .* s, since 20.* UTC, in \d+ (try|tries) at .* \(\d+\).*"
            r"what fails is the connection to the server",
        ) as error:
            list(batches)

    assert "the connection to the server" == error.value.metadata["hop"]
    assert {server.address, "127.0.0.1:1"} == set(error.value.metadata["targets"].split(", "))


def test_storage_takes_over_and_gives_back(
    url: str, undisturbed: list[str], runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No server: a private one over the URL goes on; a server again: the stream moves back."""
    caplog.set_level(logging.WARNING)
    with _server(url) as first, proxied(first.address) as proxy:
        dataset = _dataset(
            proxy.address,
            epochs=None,
            transport=_way(fallback=Fallback(url)),
        )
        batches = iter(dataset)
        seen = _take(batches, 20)
        first.stop()
        seen += _take(batches, 150)
        assert 1 == len(server_pids(runtime))
        with _server(url) as second:
            proxy.upstream = second.address
            seen += [_digest(batch) for batch in batches]
            for batch in itertools.chain.from_iterable(dataset for _ in range(20)):
                del batch
                if "moving back" in caplog.text:
                    break
            next(iter(dataset))
            connections = second.open_call_count
            dataset.close()

    assert undisturbed == seen
    assert 1 == connections


def test_storage_is_there_from_the_first_batch_on(
    url: str, undisturbed: list[str], runtime: Path
) -> None:
    """Also a run that begins, and asks for its length, while no server is up."""
    dataset = _dataset(
        "127.0.0.1:1",
        transport=_way(fallback=Fallback(url)),
    )

    assert SAMPLES // BATCH == len(dataset)
    assert undisturbed == [_digest(batch) for batch in dataset]
    assert 1 == len(server_pids(runtime))
    dataset.close()


def test_a_lost_fallback_is_started_again(url: str, undisturbed: list[str], runtime: Path) -> None:
    """The private server may be killed too."""
    dataset = _dataset(
        "127.0.0.1:1",
        transport=_way(fallback=Fallback(url)),
    )
    batches = iter(dataset)
    seen = _take(batches, 20)
    for pid in server_pids(runtime):
        os.kill(pid, signal.SIGKILL)
    seen += [_digest(batch) for batch in batches]
    dataset.close()

    assert undisturbed == seen


@pytest.mark.usefixtures("runtime")
def test_a_fallback_that_cannot_be_names_both_failures(tmp_path: Path) -> None:
    """The user learns that no server answers, and why storage does not help."""
    dataset = _dataset(
        "127.0.0.1:1",
        transport=Transport(
            prefetch_bytes=0, deadlines=QUICK, fallback=Fallback(str(tmp_path / "nothing"))
        ),
    )

    with pytest.raises(
        NotADatasetError, match=r"no server answers at 127\.0\.0\.1:1, and the fallback"
    ):
        next(iter(dataset))


def test_a_fallback_wants_to_know_where_the_data_is() -> None:
    """At the construction, not at night."""
    with pytest.raises(BadArgumentError, match=r"fallback\.url is None; expected a URL"):
        Fallback(None)  # type: ignore[arg-type] # on purpose
    with pytest.raises(BadArgumentError, match="has no URL for 'd'"):
        _dataset(
            "127.0.0.1:1",
            transport=Transport(
                prefetch_bytes=0, deadlines=QUICK, fallback=Fallback({"e": "s3://bucket/e"})
            ),
        )
    with pytest.raises(BadArgumentError, match="expected Fallback"):
        _dataset(
            "127.0.0.1:1",
            transport=_way(fallback="storage"),  # type: ignore[arg-type] # on purpose
        )
