"""Statistics as a table, and handed to what draws a run; and what progress bars ask for."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.progress import track
from torch.utils.data import DataLoader

from headrace.client import BatchLoader, ClientStats, HopSeconds, RemoteDataset, StatsLog
from headrace.client.api.stats_reporter import Reporter
from headrace.errors import BadArgumentError
from headrace.v1 import shard_service_pb2 as pb
from support.batch_functions import end_workers
from support.command import serving
from support.datasets import small_table, write_dataset
from support.running import server_of

COUNT = 13
EVIL = "<script>alert(1)</script>\x1b[2J & more"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in a process of its own: 107 samples, so 13 batches of 8."""
    url = str(tmp_path_factory.mktemp("stats") / "d")
    write_dataset(url, small_table(107), shard_samples=[107])
    with serving({"d": url}) as running:
        yield running.address


def _dataset(address: str, **options: object) -> RemoteDataset:
    return RemoteDataset(address, "d", **{"batch_size": 8, **options})  # type: ignore[arg-type] # as given


class _Cells(HTMLParser):
    """The tags of a page, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Note it."""
        del attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        """Note it."""
        self.text += data


def test_statistics_are_a_table() -> None:
    """A line a number, the same in a notebook, with whatever a server said made harmless."""
    stats = ClientStats(
        waited_s=1234.5,
        waited_on=HopSeconds(server=1000.25),
        reconnect_count=2,
        transport="grpc",
        transport_reason=EVIL,
        hedge_count=3,
        hedge_won_count=1,
    )
    lines = dict(line.strip().split("  ", 1) for line in str(stats).splitlines())
    page = _Cells()
    page.feed(stats._repr_html_())

    assert "1,234.500 s" == lines["waited"].strip()
    assert "1,000.250 s" == lines["on server"].strip()
    assert "3, won 1" == lines["hedges"].strip()
    assert "grpc (<script>alert(1)</script>?[2J & more)" == lines["transport"].strip()
    assert repr(stats) == str(stats)
    assert {"table", "tr", "th", "td"} == page.tags
    assert "<script>alert(1)</script>?[2J & more" in page.text


def test_a_server_whose_cache_is_too_small_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in the log, with the first batch, and in the statistics, with what to set."""
    write_dataset(str(tmp_path), small_table(2000), shard_samples=[500] * 4)
    with (
        server_of({"d": str(tmp_path)}, cache_bytes=16 << 10) as server,
        caplog.at_level(logging.WARNING, "headrace.client"),
        _dataset(server.address, epochs="same") as dataset,
    ):
        for _ in range(2):
            next(iter(dataset))
        stats = dataset.stats()

    shortage = stats.cache_shortage
    assert shortage is not None
    assert 16 << 10 == shortage.part_bytes
    assert shortage.missing_bytes == stats.as_numbers()["cache_missing_bytes"] > 0
    (said,) = (each.message for each in caplog.records if "headrace.client" in each.name)
    assert "this job needs 1 MiB of the server's cache and may use 0" in said
    assert "raise the server's cache_bytes" in said
    assert said in str(stats)


def test_a_server_whose_cache_is_large_enough_is_not_named(address: str) -> None:
    """Nothing is missing."""
    with _dataset(address) as dataset:
        next(iter(dataset))
        stats = dataset.stats()

    assert stats.cache_shortage is None
    assert 0 == stats.as_numbers()["cache_missing_bytes"]
    assert "large enough" in str(stats)


def test_a_log_is_called_every_so_many_steps(address: str) -> None:
    """With numbers alone, over the ends of epochs, and with the step that was trained on."""
    calls: list[dict[str, float]] = []
    log = StatsLog(calls.append, every_steps=5)
    with _dataset(address, epochs=2).log_stats(log) as dataset:
        list(dataset)
        list(dataset)
        stats = dataset.stats()

    assert [4, 9, 14, 19, 24] == [call["headrace/step"] for call in calls]
    assert [0, 0, 1, 1, 1] == [call["headrace/epoch"] for call in calls]
    assert [5, 10, 15, 20, 25] == [call["headrace/batches"] for call in calls]
    assert all(0 <= call["headrace/waited_share"] <= 1 for call in calls)
    assert calls[-1]["headrace/waited_s"] <= stats.waited_s
    assert all(type(value) in (int, float) for call in calls for value in call.values())
    assert all(name.startswith("headrace/") for call in calls for name in call)


def test_a_log_is_called_every_so_many_seconds() -> None:
    """Whichever of steps and seconds comes first; rates are over the time since the last call."""
    now = iter([0.0, 4.0, 8.0, 12.0, 19.0, 20.0, 21.0])
    calls: list[dict[str, float]] = []
    options = StatsLog(calls.append, every_s=10, every_steps=3, prefix="val")
    reporter = Reporter(options, now=lambda: next(now))
    waited = iter([1.0, 4.0, 5.5])

    for step in range(7):
        mark = pb.BatchHeader(step=step, epoch=1)
        reporter.note(mark, lambda: ClientStats(waited_s=next(waited)))

    assert [2, 4] == [call["val/step"] for call in calls]
    assert [2 / 8, 2 / 11] == [call["val/batches_per_s"] for call in calls]
    assert [3 / 8, 1.5 / 11] == [call["val/waited_share"] for call in calls]


def test_a_log_that_fails_ends_nothing(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on, the function is called again, and the log says so once."""
    calls = []

    def fail(found: dict[str, float]) -> None:
        calls.append(found)
        raise ConnectionError("the tracking server is away")

    with (
        caplog.at_level(logging.WARNING, "headrace"),
        _dataset(address).log_stats(StatsLog(fail, every_steps=1)) as dataset,
    ):
        assert COUNT == len(list(dataset))

    assert COUNT == len(calls)
    (record,) = (each for each in caplog.records if "log_stats" in each.message)
    assert "the tracking server is away" in record.message


def test_a_log_that_is_interrupted_loses_no_batch(address: str) -> None:
    """Ctrl-C reaches the loop; the next `for` goes on after the last batch that the loop had."""
    calls = []

    def interrupt_once(found: object) -> None:
        calls.append(found)
        if len(calls) == 1:
            raise KeyboardInterrupt

    steps: list[int] = []
    with _dataset(address).log_stats(StatsLog(interrupt_once, every_steps=4)) as dataset:
        with pytest.raises(KeyboardInterrupt):
            steps.extend(batch.step for batch in dataset)
        steps.extend(batch.step for batch in dataset)

    assert list(range(COUNT)) == steps
    assert 3 == len(calls)


@pytest.mark.parametrize("loader", ["torch", "headrace"])
def test_a_log_is_refused_in_workers(address: str, loader: str) -> None:
    """Also one that could not travel to them; they have statistics of their own."""
    dataset = _dataset(address).log_stats(lambda _: None)
    batches = (
        BatchLoader(dataset, num_workers=1)
        if loader == "headrace"
        else DataLoader(
            dataset, batch_size=None, num_workers=1, multiprocessing_context="forkserver"
        )
    )

    found = iter(batches)
    with pytest.raises(BadArgumentError, match="log_stats"):
        next(found)
    end_workers()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"log": "wand"}, "log is 'wand', of type str; expected 'mlflow', 'opent"),
        ({"log": print, "every_steps": 0}, "every_steps is 0"),
        ({"log": print, "every_s": -1}, "every_s is -1"),
        ({"log": print, "prefix": ""}, "prefix"),
    ],
)
def test_options_of_a_log_are_checked(options: dict[str, object], wanted: str) -> None:
    """When it is made, with what was found."""
    with pytest.raises(BadArgumentError, match=wanted):
        StatsLog(**options)  # type: ignore[arg-type] # the claim


def test_a_log_must_be_a_function() -> None:
    """Or a `StatsLog`; the message says which."""
    with pytest.raises(BadArgumentError, match=r"log is 3, of type int; expected .* or a function"):
        RemoteDataset("localhost:1", "d", batch_size=8).log_stats(3)  # type: ignore[arg-type] # the claim


def test_progress_bars_know_how_many_batches_there_are(address: str) -> None:
    """`len` is an epoch's, `batches_left` what the next loop gives, after a resume too."""
    with _dataset(address, epochs=2) as dataset:
        assert (COUNT, COUNT) == (len(dataset), dataset.batches_left)
        for _ in itertools.islice(dataset, 5):
            pass
        state = dataset.state_dict()
        assert COUNT - 5 == dataset.batches_left
        assert COUNT == len(dataset)
        assert COUNT - 5 == len(list(track(dataset, disable=True)))
        assert COUNT == dataset.batches_left == len(list(dataset))
        assert (COUNT, 0) == (len(dataset), dataset.batches_left)
    with _dataset(address) as resumed:
        resumed.load_state_dict(state)
        assert COUNT - 5 == resumed.batches_left
    with _dataset(address, epochs="same") as validation:
        for _ in itertools.islice(validation, 5):
            pass
        assert COUNT == validation.batches_left


def test_tqdm_shows_the_batches_of_an_epoch(address: str) -> None:
    """Where tqdm is installed."""
    tqdm = pytest.importorskip("tqdm").tqdm
    with _dataset(address) as dataset:
        bar = tqdm(dataset, disable=True)

        assert COUNT == bar.total
        assert COUNT == len(list(bar))
