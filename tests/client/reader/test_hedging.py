"""A late batch comes from another server, once, in its place."""

import hashlib
import itertools
import threading
from collections.abc import Iterator

import pytest
import torch

from headrace.client import Batch, Deadlines, Hedge, RemoteDataset, Transport
from headrace.client.feeds.feed import Event
from headrace.client.reader.get_batch import SingleBatch
from headrace.client.reader.hedging import HedgedFeed, Lateness, hedged
from headrace.client.servers.endpoints import Endpoint
from headrace.errors import BadArgumentError
from headrace.server import Server, ServerConfig, start_server
from support.datasets import write_rows
from support.proxy import Proxy, proxied
from support.waiting import until
from support.wire import token_at

SAMPLES, WIDTH, BATCH, EPOCHS = 4096, 1024, 16, 2
NAME = "d"
PATIENT = Deadlines(connect_s=60, silence_s=60, give_up_s=60)
"""Longer than the tests may take: only a hedge gets past a stall."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """16 MiB: more than all buffers between a server and a loop hold."""
    url = str(tmp_path_factory.mktemp("hedging") / NAME)
    write_rows(url, sample_count=SAMPLES, width=WIDTH)
    return url


@pytest.fixture(scope="module")
def servers(url: str) -> Iterator[tuple[Server, Server]]:
    """Two replicas."""
    config = ServerConfig(datasets={NAME: url}, listen="127.0.0.1:0")
    with start_server(config) as first, start_server(config) as second:
        yield first, second


@pytest.fixture(scope="module")
def undisturbed(servers: tuple[Server, Server]) -> list[str]:
    """The digest of each batch."""
    return _all(_dataset(servers[0].address))


def _dataset(*targets: str, hedge: Hedge | None = None) -> RemoteDataset:
    return RemoteDataset(
        list(targets),
        NAME,
        batch_size=BATCH,
        epochs=EPOCHS,
        transport=Transport(prefetch_bytes=0, deadlines=PATIENT, hedge=hedge),
    )


def _digest(batch: Batch) -> str:
    x = batch["x"]
    assert isinstance(x, torch.Tensor)
    return hashlib.sha256(x.numpy().tobytes() + batch.token).hexdigest()


def _all(dataset: RemoteDataset) -> list[str]:
    found = [_digest(batch) for _ in range(EPOCHS) for batch in dataset]
    dataset.close()
    return found


def _in_use(proxies: tuple[Proxy, Proxy]) -> tuple[Proxy, Proxy]:
    """Return the proxy that the stream goes through, and the other."""
    first, second = proxies
    return (first, second) if first.connection_count else (second, first)


def test_a_stalled_server_does_not_stall_the_loop(
    servers: tuple[Server, Server], undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its batch comes from the other server, which the stream goes on at; stats and log count."""
    caplog.set_level("INFO", logger="headrace.client")
    with proxied(servers[0].address) as first, proxied(servers[1].address) as second:
        dataset = _dataset(first.address, second.address, hedge=Hedge())
        batches = iter(dataset)
        seen = [_digest(batch) for batch in itertools.islice(batches, 20)]
        _in_use((first, second))[0].cut()
        seen += [_digest(batch) for batch in batches]
        seen += [_digest(batch) for batch in dataset]
        stats = dataset.stats()
        dataset.close()

    assert undisturbed == seen
    assert 1 <= stats.hedge_won_count <= stats.hedge_count
    assert 0 == stats.reconnect_count
    assert any("answered first" in record.message for record in caplog.records)


def test_a_hedge_that_comes_second_is_dropped(
    servers: tuple[Server, Server], undisturbed: list[str]
) -> None:
    """Both servers stall, the stream's comes back first: its batch counts, and counts once."""
    with proxied(servers[0].address) as first, proxied(servers[1].address) as second:
        dataset = _dataset(first.address, second.address, hedge=Hedge())
        batches = iter(dataset)
        seen = [_digest(batch) for batch in itertools.islice(batches, 20)]
        stream, other = _in_use((first, second))
        stream.cut()
        other.cut()
        loop = threading.Thread(target=lambda: seen.extend(map(_digest, batches)), name="loop")
        loop.start()
        was_asked = until(lambda: dataset.stats().hedge_count >= 1)
        stream.mend()
        loop.join(60)
        stats = dataset.stats()
        other.mend()
        seen += [_digest(batch) for batch in dataset]
        dataset.close()

    assert was_asked
    assert undisturbed == seen
    assert 0 == stats.hedge_won_count


def test_hedges_for_every_batch_change_no_batch(
    servers: tuple[Server, Server], undisturbed: list[str]
) -> None:
    """However stream and hedges race, also at the ends of epochs, the loop sees the same."""
    hedge = Hedge(percentile=0.01, least_s=1e-6, budget=1.0)
    dataset = _dataset(servers[0].address, servers[1].address, hedge=hedge)

    found = _all(dataset)

    assert undisturbed == found
    assert dataset.stats().hedge_count > 0


def test_extra_requests_stay_within_their_budget() -> None:
    """A tenth of the batches, and what was there to begin with, however late they all are."""
    lateness = Lateness(Hedge(budget=0.1))
    asked = 0
    for _ in range(1000):
        asked += lateness.spend()
        lateness.note(1.0)

    assert 99 <= asked <= 1 + 100


class _Late:
    """A stream whose first batch does not come before somebody has looked for another server."""

    def __init__(self) -> None:
        self.looked = threading.Event()

    def nobody(self) -> None:
        """Return no other server."""
        self.looked.set()

    def events(self) -> Iterator[Event | None]:
        assert self.looked.wait(60)
        yield from ()

    def cancel(self) -> None:
        pass


def test_nobody_to_ask_is_no_hedge() -> None:
    """Where there is one server, no batch counts as asked for elsewhere."""
    lateness, late = Lateness(Hedge(least_s=0.001)), _Late()

    def ask(endpoint: Endpoint, token: bytes) -> SingleBatch:
        raise AssertionError((endpoint, token))

    feed = HedgedFeed(
        late, lateness, token=token_at(0, 0, size=4), end_epoch=None, other=late.nobody, ask=ask
    )
    with hedged(feed):
        assert [] == list(feed.events())

    assert 0 == lateness.counts.asked


def test_late_is_what_most_are_not() -> None:
    """The limit follows the batches, and never falls below the least."""
    lateness = Lateness(Hedge(percentile=0.9, least_s=0.5))
    assert 0.5 == lateness.limit_s()
    for tenth in range(1, 11):
        lateness.note(float(tenth))

    assert 10.0 == lateness.limit_s()
    for _ in range(300):
        lateness.note(0.001)
    assert 0.5 == lateness.limit_s()


@pytest.mark.parametrize("wrong", [{"percentile": 1.0}, {"least_s": 0.0}, {"budget": 1.5}])
def test_a_hedge_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    """The error names the field."""
    with pytest.raises(BadArgumentError, match=f"hedge.{next(iter(wrong))}"):
        Hedge(**wrong)
