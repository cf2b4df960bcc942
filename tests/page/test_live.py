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
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trustme

from headrace.client import NumpyDataset
from headrace.client.options.access import Access
from headrace.errors import ConfigurationError
from headrace.page.live.rates import marks, stream_rates
from headrace.page.live.watch import Answer, Watch
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
    table = text.partition('class="streams"')[2].partition("</table>")[0]
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
        assert "<dt>Streams</dt>" in page.ask("/live").text
        assert "red" in page.ask("/").text
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
        assert "<dt>" not in others
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
    """All of them are on one page, which stays small, in the order that is asked for."""
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
        by_position = _rows(page.ask("/live?sort=position").text)

    assert list(range(256)) == [int(row[2]) for row in rows]
    assert list(range(255, -1, -1)) == [int(row[2]) for row in by_position]
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


def test_nobody_looks_and_nothing_is_asked(tmp_path: Path) -> None:
    """Other views ask the server nothing, and many that look at once ask it once."""
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


def _answer(at: float, reasons: dict[str, float], streams: dict[int, dict[str, float]]) -> Answer:
    counted = {("headrace_ended_streams_total", reason): n for reason, n in reasons.items()}
    rows = {
        number: {
            "caller": "",
            "dataset": "a",
            "rank": number,
            "position": 0,
            "epoch_samples": 0,
            "samples": 0,
            "made_s": 0.0,
            "store_wait_s": 0.0,
            "client_wait_s": 0.0,
            "shortage": None,
            **row,
        }
        for number, row in streams.items()
    }
    return Answer(at, rows, counted)


def test_rates_and_waits_are_those_of_the_last_minutes() -> None:
    """A share is of the time between two answers; a stream that just came has none."""
    before = _answer(0, {}, {1: {"samples": 100, "made_s": 1.0, "store_wait_s": 1.0}})
    after = _answer(
        10,
        {},
        {
            1: {"samples": 600, "made_s": 5.0, "store_wait_s": 3.0, "client_wait_s": 5.0},
            2: {"samples": 50},
        },
    )
    one, two = stream_rates([before, after], lambda _: True)

    assert 50 == one.samples_per_s
    assert (0.2, 0.2, 0.5) == pytest.approx((one.store, one.making, one.reader))
    assert (0, 0, 0, 0) == (two.samples_per_s, two.store, two.making, two.reader)
    assert [] == stream_rates([before, after], lambda row: row["rank"] > 2)
    assert [] == stream_rates([], lambda _: True)


def test_faults_drains_and_rebalances_are_marks_in_time() -> None:
    """What grew between two answers happened then; ends in good order are no event."""
    answers = [
        _answer(0, {"OK": 1, "REBALANCE": 1}, {}),
        _answer(1, {"OK": 9, "REBALANCE": 3}, {}),
        _answer(5, {"OK": 9, "REBALANCE": 3, "SHARD_CORRUPT": 1}, {}),
    ]

    found = [(mark.ago_s, mark.what, mark.count) for mark in marks(answers)]
    assert [(0, "SHARD_CORRUPT", 1), (4, "REBALANCE", 2)] == found


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
