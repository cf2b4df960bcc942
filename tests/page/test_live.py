"""The live view of a real server: who reads what, told to those who may know."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import trustme

from headrace.client import NumpyDataset, Transport
from headrace.client.options.access import Access
from headrace.errors import ConfigurationError
from headrace.page.live.history import (
    FETCH_ERRORS,
    MAX_BYTES,
    MAX_JOBS,
    POINTS,
    TICK_S,
    TICKS,
    Answer,
    History,
)
from headrace.page.live.reasons import event_of
from headrace.page.live.verdict import verdict_on, verdict_on_fault
from headrace.page.live.watch import Watch
from headrace.page.views.live import bands_of
from headrace.server import ServerConfig
from headrace.server.cache.needs import Shortage
from headrace.server.process.page_process import check_page
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.status import status_of
from headrace.server.telemetry.stream_counts import StreamAbout, StreamTally
from support.datasets import small_table, write_dataset
from support.paged import TIMEOUT_S, answers, paged, served_page, write_tokens
from support.waiting import until


def _rows(text: str) -> list[list[str]]:
    """The cells of the table of streams."""
    table = text.partition('class="streams stack"')[2].partition("</table>")[0]
    body = table.partition("<tbody>")[2]
    cells = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
    rows = [cells.findall(row) for row in body.split("<tr>")[1:]]
    return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in row] for row in rows]


def test_a_server_shows_who_reads_and_where(tmp_path: Path) -> None:
    """The rank, the position and the step are those of the stream; when it ends it is gone."""
    with served_page(tmp_path) as (server, page):
        assert [] == _rows(page.ask("/live").text)
        with NumpyDataset(server.address, "red", batch_size=10, rank=1, world_size=2) as dataset:
            batches = iter(dataset)
            next(batches)
            rows = until(lambda: _rows(page.ask("/live").text))

            assert [["127.0.0.1", "red", "1"]] == [row[:3] for row in rows]
            found = re.fullmatch(r"([\d,]+) \(([\d.]+) %\)", rows[0][5])
            assert found is not None
            position, step = int(found[1].replace(",", "")), int(rows[0][6].replace(",", ""))
            # An epoch has 2,000 samples, and a step 20 over both ranks.
            assert position == (20 * step) % 2000 or position == 2000
            assert step > 0
        assert until(lambda: not _rows(page.ask("/live").text))
        text = page.ask("/live").text
        assert "<dt>Streams</dt>" in text
        assert "No stream is open." in text
        assert "red" in page.ask("/").text
        # What is to be copied reads from this server.
        assert f'RemoteDataset("{server.address}", "red"' in page.ask("/d/red").text
        assert 200 == page.ask("/d/red/samples").status


@pytest.mark.long
def test_several_processes_show_their_streams_too(tmp_path: Path) -> None:
    """Workers report theirs."""
    with (
        served_page(tmp_path, "--workers", "2", "--cache-bytes", "64MiB") as (server, page),
        NumpyDataset(server.address, "red", batch_size=10) as dataset,
    ):
        batches = iter(dataset)
        next(batches)
        assert until(lambda: _rows(page.ask("/live").text))


def test_a_tenant_sees_its_own_streams_and_an_operator_all(tmp_path: Path) -> None:
    """Nor does a tenant see the server's sums, which tell of others."""
    tokens = write_tokens(
        tmp_path / "tokens.json",
        {"anna": ["red"], "bert": ["*"], "olga": ["*"]},
        operators=["olga"],
    )
    with served_page(tmp_path, "--tokens", str(tokens)) as (server, page):
        anna, bert, olga = (page.session(name * 16) for name in ("anna", "bert", "olga"))
        access = Access(auth="anna" * 16)
        with NumpyDataset(server.address, "red", batch_size=10, access=access) as dataset:
            batches = iter(dataset)
            next(batches)
            rows = until(lambda: _rows(page.ask("/live", headers=olga).text))
            assert ["anna"] == [row[0] for row in rows]
            assert ["anna"] == [row[0] for row in _rows(page.ask("/live", headers=anna).text)]
            others = page.ask("/live", headers=bert).text

        assert [] == _rows(others)
        assert "anna" not in others
        assert 'class="stats"' not in others
        assert 401 == page.ask("/live").status


def test_the_page_ends_with_its_server_and_comes_back_after_a_fault(tmp_path: Path) -> None:
    """A page that is killed is started again, and streams notice nothing; none is left behind."""
    with served_page(tmp_path) as (server, page):
        (child,) = _pages(server.process.pid)
        os.kill(child, signal.SIGKILL)
        with NumpyDataset(server.address, "red", batch_size=10) as dataset:
            assert 2000 == sum(len(batch["number"]) for batch in dataset)
        assert until(lambda: answers(page))
        (again,) = _pages(server.process.pid)
        assert again != child
    assert until(lambda: not answers(page))
    assert until(lambda: not Path(f"/proc/{again}").exists())


@pytest.mark.long
def test_the_page_shows_a_drain(tmp_path: Path) -> None:
    """While a reader that takes nothing holds the server up; it still ends with 0, in time."""
    narrow = Transport(prefetch_bytes=1 << 12)
    with (
        served_page(tmp_path, "--drain-s", "4") as (server, page),
        NumpyDataset(server.address, "red", batch_size=100, transport=narrow) as held,
        NumpyDataset(server.address, "blue", batch_size=1) as other,
    ):
        batches = iter(held), iter(other)
        for each in batches:
            next(each)
        assert until(lambda: 2 == len(_rows(page.ask("/live").text)))
        server.process.send_signal(signal.SIGTERM)
        assert until(lambda: "the server shuts down (DRAINING)" in page.ask("/live").text)
        assert 0 == server.process.wait(10)


def _pages(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"headrace.page" in command:
            found.append(int(stat.parent.name))
    return found


def test_a_server_refuses_a_page_that_lets_everybody_in() -> None:
    """Before it serves."""
    for page in ("0.0.0.0:8080", "[::]:8080", "myhost:8080"):
        with pytest.raises(ConfigurationError, match="tokens"):
            ServerConfig(datasets={"a": "a"}, page=page)
    with pytest.raises(ConfigurationError, match="page"):
        ServerConfig(datasets={"a": "a"}, page="unix:/x")


def test_a_server_without_the_packages_of_its_page_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it serves; without a page it needs none."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    check_page(ServerConfig(datasets={"a": "a"}))
    with pytest.raises(ConfigurationError, match=r"jinja2, .*uvicorn, .*'headrace\[page\]'"):
        check_page(ServerConfig(datasets={"a": "a"}, page="127.0.0.1:0"))


@contextmanager
def _watched(metrics: Metrics) -> Iterator[Watch]:
    """Answer a page's questions over a pipe, as a server does."""
    ours, theirs = Pipe()

    def answer() -> None:
        while ours.recv_bytes() != b"end":
            told = status_of(metrics.registry.collect(), metrics.streams.rows())
            ours.send_bytes(json.dumps(told).encode())

    watch = Watch(theirs, on_end=lambda: None)
    watch.start()
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield watch
    finally:
        watch.send_url("end")
        thread.join()
        ours.close()


def test_256_streams_are_a_line_each(tmp_path: Path) -> None:
    """All of them are on one page, which stays small, in the order of ranks."""
    write_dataset(str(tmp_path / "red"), small_table(10), shard_samples=[10])
    metrics = Metrics()
    for number in range(256):
        about = StreamAbout("anna", "ipv4:10.0.0.1:1", "batches", 1000, (0, 0))
        tally = StreamTally(metrics.streams, "red", number, about)
        tally.begin()
        place = (0, 1000 - number, number)
        tally.sent(batches=1, samples=1, payload_bytes=1, place=place)
    with _watched(metrics) as watch, paged({"red": str(tmp_path / "red")}, watch=watch) as page:
        answer = page.ask("/live")
        rows = _rows(answer.text)

    assert list(range(256)) == [int(row[2]) for row in rows]
    assert len(answer.content) < 512 << 10


def test_a_cache_that_is_too_small_is_named_with_what_would_help(tmp_path: Path) -> None:
    """Operators are told what all jobs need, and a tenant only what its own needs."""
    write_dataset(str(tmp_path / "red"), small_table(10), shard_samples=[10])
    tokens = write_tokens(
        tmp_path / "tokens.json", {"anna": ["red"], "olga": ["*"]}, operators=["olga"]
    )
    metrics = Metrics()
    for rank, short in ((0, 20), (1, 30)):
        shortage = Shortage(short << 20, 7 << 20, 50 << 20, 14 << 20, 2)
        about = StreamAbout(
            "anna", "ipv4:10.0.0.1:1", "batches", 10, (0, 0), partial(copy, shortage)
        )
        StreamTally(metrics.streams, "red", rank, about).begin()
    with (
        _watched(metrics) as watch,
        paged({"red": str(tmp_path / "red")}, watch=watch, tokens=tokens) as page,
    ):
        anna, olga = (
            page.ask("/live", headers=page.session(name * 16)).text for name in ("anna", "olga")
        )

    for text in (anna, olga):
        assert 1 == text.count("The cache is too small for <bdi>red</bdi>")
        assert "its job needs 30 MiB and may use 7 MiB" in text
    assert "Raise <code>cache_bytes</code> to 50 MiB for all open jobs" in olga
    assert "50 MiB" not in anna
    assert "Ask for more <code>cache_bytes</code>" in anna


def test_many_that_look_ask_the_server_once(tmp_path: Path) -> None:
    """Other views ask it nothing, and what they show of readers is what is known anyway."""
    write_dataset(str(tmp_path / "red"), small_table(10), shard_samples=[10])
    ours, theirs = Pipe()
    watch = Watch(theirs, on_end=lambda: None, now=lambda: 0.0)
    watch.start()
    with paged({"red": str(tmp_path / "red")}, watch=watch) as page:
        page.ask("/")
        page.ask("/d/red/samples")
        assert not ours.poll()
        page.ask("/live")
        page.ask("/live")
        asked = 0
        while ours.poll():
            asked += ours.recv_bytes() == b"?"
        assert 1 == asked
    ours.close()


def test_half_an_hour_is_kept_though_nobody_looks() -> None:
    """The server is asked once per tick."""
    ours, theirs = Pipe()
    watch = Watch(theirs, on_end=lambda: None)
    watch.start()
    assert ours.poll(4 * TICK_S)
    assert b"?" == ours.recv_bytes()
    ours.close()


def test_a_wait_that_has_not_ended_counts() -> None:
    """A stream that stands is seen to stand, for its reader or for its store."""
    metrics = Metrics()
    tally = StreamTally(metrics.streams, "red", 0)
    tally.begin()
    messages = tally.timed((each for each in [b"message"]), taken=lambda _: None)

    next(messages)
    (first,) = metrics.streams.rows()
    (second,) = metrics.streams.rows()
    assert 0 < first["client_wait_s"] < second["client_wait_s"]
    assert [] == list(messages)
    assert metrics.streams.rows()[0]["client_wait_s"] == tally.counts.client_wait_s

    tally.starving(time.monotonic())
    (first,) = metrics.streams.rows()
    (second,) = metrics.streams.rows()
    assert 0 < first["store_wait_s"] < second["store_wait_s"]
    tally.starved(seconds=1.0)
    assert 1.0 == metrics.streams.rows()[0]["store_wait_s"]


# What is told of answers.


_NOTHING = {
    "caller": "",
    "dataset": "a",
    "rank": 0,
    "samples": 0,
    "decode_wait_s": 0.0,
    "server_wait_s": 0.0,
    "store_wait_s": 0.0,
    "client_wait_s": 0.0,
}


def _answer(
    at: float,
    counted: Mapping[tuple[str, ...], float],
    streams: dict[int, dict[str, Any]],
    ended: dict[int, dict[str, Any]] | None = None,
) -> Answer:
    rows = {number: {**_NOTHING, "rank": number, **row} for number, row in streams.items()}
    over = {number: {**_NOTHING, "rank": number, **row} for number, row in (ended or {}).items()}
    return Answer(at, 1000 + at, rows, counted, over)


def _history(*answers: Answer) -> History:
    history = History()
    for answer in answers:
        history.add(answer)
    return history


def test_rates_and_waits_are_those_of_the_last_half_minute() -> None:
    """A share is of the time between two answers; a stream that just came has none yet."""
    history = _history(
        _answer(0, {}, {1: {"samples": 100, "server_wait_s": 1.0, "store_wait_s": 1.0}}),
        _answer(
            10,
            {},
            {
                1: {
                    "samples": 600,
                    "server_wait_s": 2.0,
                    "decode_wait_s": 1.0,
                    "store_wait_s": 3.0,
                    "client_wait_s": 5.0,
                },
                2: {"samples": 50},
            },
        ),
    )
    recent, points = history.streams([1, 2, 3])
    assert [50, 0.2, 0.1, 0.1, 0.5] == pytest.approx(recent[0], abs=0.01)
    assert np.isnan(recent[1:]).all()
    assert 50 == points[0, POINTS - 1]
    (series,) = history.jobs(lambda _: True).values()
    assert 2 == series.ranks
    now = series.recent()
    assert now is not None
    assert [50, 0.2, 0.1, 0.1, 0.5] == pytest.approx(now[1:6])
    assert {} == history.jobs(lambda job: job[1] != "a")
    assert (0, POINTS) == History().streams([])[1].shape


def test_what_fills_the_queues_of_a_new_stream_is_no_rate() -> None:
    """A job has none in its first ten seconds, and then that of its trainer."""
    sent = {5: 4000, 10: 8000, 15: 8100, 20: 8200}
    history = _history(
        _answer(0, {}, {}), *(_answer(at, {}, {1: {"samples": n}}) for at, n in sent.items())
    )

    (series,) = history.jobs(lambda _: True).values()
    assert np.isnan(series.ticks[:2, 1]).all()
    assert [20.0, 20.0] == series.ticks[2:, 1].tolist()


def test_epochs_of_seconds_have_a_rate() -> None:
    """Each has a stream of its own, which most answers see only when it has ended."""
    row = {"rank": 0, "samples": 50, "client_wait_s": 1.0}
    history = _history(
        _answer(0, {}, {}),
        *(
            # Two epochs of 50 samples have ended since the last answer.
            _answer(
                5.0 * tick,
                {},
                {2 * tick: {"rank": 0}} if tick % 2 else {},
                {n: {**row, "ended": "OK"} for n in range(max(1, 2 * tick - 6), 2 * tick)},
            )
            for tick in range(1, 20)
        ),
    )

    (series,) = history.jobs(lambda _: True).values()
    now = series.recent()
    assert now is not None
    assert 1 == series.ranks
    assert [20, 0.4] == pytest.approx([now[1], now[5]])
    # The first answer shows the rank, the second is where its rate begins.
    assert not np.isnan(series.ticks[2:, 1]).any()
    rates, points = history.streams([38])
    assert 20 == rates[0, 0]
    assert 20 == np.nanmin(points)


def test_a_job_has_a_rate_after_five_seconds() -> None:
    """While somebody looks, the server is asked every second."""
    history = _history(_answer(0, {}, {}))
    for at in range(1, 6):
        history.add(_answer(at, {}, {0: {"samples": 1000 + 10 * at}}))

    (series,) = history.jobs(lambda _: True).values()
    assert [10.0] == series.ticks[:, 1].tolist()


def test_a_rank_that_gets_bursts_does_not_begin_with_nothing() -> None:
    """Its first rate is of ten seconds, if the first five brought no message."""
    sent = {5: 100, 10: 100, 15: 100, 20: 200, 25: 200}
    history = _history(
        _answer(0, {}, {}), *(_answer(at, {}, {1: {"samples": n}}) for at, n in sent.items())
    )
    (series,) = history.jobs(lambda _: True).values()
    assert np.isnan(series.ticks[:3, 1]).all()
    assert [10.0, 0.0] == series.ticks[3:, 1].tolist()


def test_the_line_of_a_stream_begins_where_it_does() -> None:
    """It fills its width after ten minutes as after one."""
    history = _history(*(_answer(5.0 * tick, {}, {0: {"samples": tick}}) for tick in range(14)))
    (points,) = history.streams([0])[1]
    assert not np.isnan(points[[0, -1]]).any()
    assert 13 == np.isfinite(points).sum()


def test_a_rank_with_two_streams_shares_its_rate_out() -> None:
    """Such as two jobs that one caller runs of one dataset."""
    history = _history(
        _answer(0, {}, {1: {"rank": 0}, 2: {"rank": 0}}),
        _answer(
            10,
            {},
            {n: {"rank": 0, "samples": 100 * n, "client_wait_s": 10.0} for n in (1, 2)},
        ),
    )
    recent, _ = history.streams([1, 2])
    assert [[15.0, 1.0]] * 2 == recent[:, [0, 4]].tolist()


_SHARD = {"ended": "OBJECT_NOT_FOUND"}


def test_ranks_that_ended_with_an_error_are_told_until_they_come_back() -> None:
    """With the time, the error in words, and what to do; it is over after ten minutes."""
    history = _history(_answer(0, {}, {0: {}, 1: {}}), _answer(5, {}, {}, {0: _SHARD, 1: _SHARD}))

    ((job, fault),) = history.faults.items()
    assert {} == history.ranks()
    found = verdict_on_fault(job, fault, now=1100)
    assert found is not None
    assert "bad" == found.level
    assert found.text.startswith(
        "2 ranks ended at 00:16 UTC: a shard is missing (OBJECT_NOT_FOUND); restore the dataset"
    )
    assert verdict_on_fault(job, fault, now=2000) is None
    (mark,) = history.marks
    assert "2 streams ended: a shard is missing (OBJECT_NOT_FOUND)" == event_of(mark)

    history.add(_answer(10, {}, {2: {"rank": 0}, 3: {"rank": 1}}))
    assert history.faults == {job: fault}
    history.add(_answer(15, {}, {2: {"rank": 0, "samples": 1}, 3: {"rank": 1}}))
    assert {1} == history.faults[job].ranks
    history.add(_answer(20, {}, {3: {"rank": 1, "samples": 1}}))
    assert verdict_on_fault(job, history.faults[job], now=1100) is None


def test_another_stream_of_the_same_rank_hides_no_fault() -> None:
    """Such as that of a validation, which reads on."""
    history = _history(_answer(0, {}, {n: {"rank": 0} for n in (1, 2)}))
    history.add(_answer(5, {}, {2: {"rank": 0, "samples": 9}}, {1: {"rank": 0, **_SHARD}}))
    history.add(_answer(10, {}, {2: {"rank": 0, "samples": 99}}))
    assert [{0}] == [fault.ranks for fault in history.faults.values()]
    assert {("", "a"): 1} == history.ranks()


def test_ranks_that_a_smaller_job_does_not_have_are_not_missed() -> None:
    """It has gone on without them."""
    asked = {n: {"asked": f"batches for rank {n} of 4", **_SHARD} for n in range(4)}
    history = _history(_answer(0, {}, {}), _answer(5, {}, {}, asked))
    for at in (10, 15):
        rows = {n: {"rank": n - 10, "asked": "batches for rank 0 of 2"} for n in (10, 11)}
        history.add(_answer(at, {}, {n: {**row, "samples": at} for n, row in rows.items()}))
    assert [frozenset()] == [fault.ranks for fault in history.faults.values()]


def test_a_job_that_died_at_once_is_listed_as_ended(tmp_path: Path) -> None:
    """In the verdict, the table of jobs and the events, for those who may know of the job."""
    write_dataset(str(tmp_path / "red"), small_table(10), shard_samples=[10])
    tokens = write_tokens(
        tmp_path / "tokens.json",
        {"anna": ["red"], "bert": ["red"], "olga": ["*"]},
        operators=["olga"],
    )
    metrics = Metrics()
    with (
        _watched(metrics) as watch,
        paged({"red": str(tmp_path / "red")}, watch=watch, tokens=tokens) as page,
    ):
        anna, bert, olga = (page.session(name * 16) for name in ("anna", "bert", "olga"))
        page.ask("/live", headers=olga)
        for rank in range(4):
            about = StreamAbout("anna", "ipv4:10.0.0.1:1")
            tally = StreamTally(metrics.streams, "red", rank, about)
            tally.begin()
            tally.close("OBJECT_NOT_FOUND")
        metrics.read("red", seconds=0.1, blocks=0, reason="OBJECT_NOT_FOUND")
        assert until(lambda: "4 ranks" in page.ask("/live", headers=olga).text, timeout_s=20)
        told, other = (
            re.sub(r"<[^>]*>", "", page.ask("/live", headers=who).text) for who in (anna, bert)
        )

    assert re.search(r"red 4 ranks ended at \d\d:\d\d UTC: a shard is missing", told)
    assert re.search(r"ended at [\d:]* UTC: a shard is missing", told)
    assert "red: 4 streams ended: a shard is missing (OBJECT_NOT_FOUND)" in told
    assert "ended" not in other
    assert "missing" not in other
    assert "You have no open stream." in other


def test_a_chart_names_a_cause_once_with_its_kind() -> None:
    """Reads that failed and the streams that ended of it are one band; a rescale is another."""
    history = _history(
        _answer(0, {}, {0: {"asked": "batches for rank 0 of 2"}}),
        _answer(5, {(FETCH_ERRORS, "OBJECT_NOT_FOUND", "a"): 9}, {}, {0: _SHARD}),
        _answer(10, {}, {1: {"asked": "batches for rank 0 of 1"}}, {3: _SHARD}),
    )
    assert [
        (1005, 1010, "a: a shard is missing", "fault"),
        (1010, 1010, "a: rescaled from 2 to 1 ranks", "rescale"),
    ] == sorted(bands_of(history.marks))


def test_what_calls_count_too_is_told_once() -> None:
    """A stream that ends with an error is a failed call, and so is the read that failed."""
    read, call = (FETCH_ERRORS, "OBJECT_NOT_FOUND", "a"), ("headrace_failed_calls_total",)
    history = _history(
        _answer(0, {}, {}),
        _answer(
            5,
            {
                read: 53,
                (*call, "OBJECT_NOT_FOUND"): 1,
                (*call, "SHARD_CORRUPT"): 1,
                (*call, "STREAM_LIMIT"): 2,
            },
            {},
            {0: {"ended": "SHARD_CORRUPT"}},
        ),
    )
    assert [
        (("", "a"), "1 stream ended: a shard is damaged (SHARD_CORRUPT)"),
        (("", "a"), "53 reads of the store failed: a shard is missing (OBJECT_NOT_FOUND)"),
        (("", ""), "2 calls failed: too many streams (STREAM_LIMIT)"),
    ] == [(mark.job, event_of(mark)) for mark in history.marks]


def test_faults_drains_rebalances_and_rescales_are_marks_in_time() -> None:
    """What ended between two answers ended then; ends in good order are no event."""
    eight, six = ({1: {"asked": f"batches for rank 1 of {size}"}} for size in (8, 6))
    moved = {n: {"ended": "REBALANCE"} for n in (3, 4)}
    history = _history(
        _answer(0, {}, eight, {2: {"ended": "REBALANCE"}}),
        _answer(5, {}, eight, {**moved, 5: {"ended": "OK"}}),
        _answer(10, {}, six, {**moved, 6: {"ended": "SHARD_CORRUPT"}}),
    )
    found = [(mark.wall, mark.what, mark.count, mark.kind) for mark in history.marks]
    assert [
        (1005, "REBALANCE", 2, "drain"),
        (1010, "SHARD_CORRUPT", 1, "fault"),
        (1010, "rescaled from 8 to 6 ranks", 1, "rescale"),
    ] == found


def test_a_job_that_was_away_while_it_started_again_is_rescaled() -> None:
    """Between the old ranks and the new ones there are answers without any; hours are too long."""
    eight, six = ({1: {"asked": f"batches for rank 1 of {size}"}} for size in (8, 6))
    history = _history(
        *(_answer(0, {}, eight), _answer(5, {}, {}), _answer(10, {}, {}), _answer(15, {}, six)),
        *(_answer(20, {}, {}), _answer(9000, {}, eight)),
    )

    assert [(1015, "rescaled from 8 to 6 ranks")] == [(m.wall, m.what) for m in history.marks]


def test_faults_that_follow_one_another_are_one_event() -> None:
    """With its beginning, its end and how often; what comes later is another one."""
    key = (FETCH_ERRORS, "STORE_UNAVAILABLE")
    times = (0, 5, 10, 15, 200, 205)
    history = _history(
        *(_answer(at, {key: 2.0 * count}, {}) for count, at in enumerate(times)),
    )

    found = [(mark.wall, mark.until, mark.count) for mark in history.marks]
    assert [(1005, 1015, 6), (1200, 1205, 4)] == found
    assert "503" in event_of(history.marks[0])


def test_half_an_hour_of_anything_fits_in_its_bytes() -> None:
    """Of thousands of streams and of callers that change all the time, and for days."""
    answers = [_answer(0, {}, {n: {"caller": f"{k}.{n % 80}"} for n in range(1100)}) for k in "abc"]
    tracemalloc.start()
    history = History()
    before = tracemalloc.get_traced_memory()[0]
    for tick in range(TICKS + 50):
        at = TICK_S * tick
        reasons: dict[tuple[str, ...], float] = {
            (FETCH_ERRORS, f"REASON{n}"): float(tick) for n in range(10)
        }
        history.add(replace(answers[tick // 2 % 3], at=at, wall=at, counted=reasons))
    history.latest = history._before = None  # of the present, and not of history
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    names = TICKS // 2 * MAX_JOBS * 80  # which all differ, if there are enough callers
    assert TICKS == len(history.times())
    assert kept + names < MAX_BYTES


def _verdict(
    *seconds: tuple[float, float, float, float], errors: float = 0, is_short: bool = False
) -> tuple[str, str]:
    """Judge ranks by their samples, and their seconds of store, server and reader out of ten."""
    names = ("samples", "store_wait_s", "server_wait_s", "client_wait_s")
    rows = {n: dict(zip(names, each, strict=True)) for n, each in enumerate(seconds)}
    history = _history(
        _answer(0, {}, {n: {} for n in rows}), _answer(10, {(FETCH_ERRORS, "503"): errors}, rows)
    )
    ((job, series),) = history.jobs(lambda _: True).items()
    found = verdict_on(job, series, marks=history.marks, is_short=is_short, now=1100)
    return found.level, found.text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([(100, 0, 1, 9)] * 2, ("good", "2 ranks get their batches before they ask for them")),
        (
            [(100, 8, 1, 1)] * 3 + [(100, 0, 1, 9)],
            (
                "slow",
                "3 of 4 ranks wait for the store: reads take longer than the trainer's steps",
            ),
        ),
        (
            [(100, 0, 9, 1)],
            ("slow", "the server is the limit: it spends 90% of the time making batches"),
        ),
        (
            [(0, 0, 0, 10)],
            ("slow", "batches wait for 1 rank, which took none in the last half minute"),
        ),
        ([(0, 0, 0, 0)], ("bad", "nothing reached 1 rank in the last half minute")),
    ],
)
def test_a_verdict_names_what_ranks_wait_for(
    seconds: list[tuple[float, float, float, float]], expected: tuple[str, str]
) -> None:
    """The store, the server or the trainer; and how many of them do."""
    assert expected == _verdict(*seconds)


def test_a_verdict_names_why_the_store_is_slow() -> None:
    """What failed and since when, or the cache; and a job that stands is worse than a slow one."""
    waits = [(0, 10, 0, 0)] * 2
    level, text = _verdict(*waits, errors=3)
    assert ("bad", "2 of 2 ranks wait for the store: 503 since 00:16 UTC") == (level, text)
    assert "cache is too small" in _verdict(*waits, is_short=True)[1]


def test_ranks_without_a_stream_are_missed() -> None:
    """Those that are there may do well, but the job waits for the others."""
    rows = {n: {"samples": 100, "client_wait_s": 9.0} for n in range(2)}
    history = _history(_answer(0, {}, {0: {}, 1: {}}), _answer(10, {}, rows))
    ((job, series),) = history.jobs(lambda _: True).items()

    found = verdict_on(job, series, marks=[], is_short=False, now=1100, connected=(2, 3))
    assert "slow" == found.level
    assert found.text.startswith("2 of 3 ranks are connected; ")


def test_a_job_that_hardly_moves_is_bad() -> None:
    """All of its ranks wait nearly all the time, though something still comes."""
    assert _verdict(*[(10, 9.5, 9.5, 0)] * 4)[0] == "bad"


def test_a_page_over_tls_speaks_to_nobody_in_clear_text(tmp_path: Path) -> None:
    """Its cookie is for TLS alone; a client that does not know the authority gets nothing."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (tmp_path / "cert").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (tmp_path / "key").write_bytes(issued.private_key_pem.bytes())
    write_dataset(str(tmp_path / "red"), small_table(10), shard_samples=[10])
    tokens = write_tokens(tmp_path / "tokens.json", {"anna": ["red"]})
    tls = str(tmp_path / "cert"), str(tmp_path / "key")
    trusting = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())

    with paged(
        {"red": str(tmp_path / "red")}, tokens=tokens, tls=tls, hosts=("localhost",)
    ) as page:
        _, port = page.address
        assert page.url.startswith("https://")
        with pytest.raises((OSError, http.client.HTTPException)):
            page.ask("/login")
        for context, is_told in ((trusting, True), (ssl.create_default_context(), False)):
            connection = http.client.HTTPSConnection(
                "localhost", port, timeout=TIMEOUT_S, context=context
            )
            body = urlencode({"token": "anna" * 16, "to": "/"})
            form = {"content-type": "application/x-www-form-urlencoded"}
            try:
                if not is_told:
                    with pytest.raises(ssl.SSLCertVerificationError):
                        connection.request("POST", "/login", body, form)
                    continue
                connection.request("POST", "/login", body, form)
                answer = connection.getresponse()
                assert 303 == answer.status
                assert "secure" in answer.headers["set-cookie"].lower().split("; ")
            finally:
                connection.close()
