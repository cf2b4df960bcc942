"""How long the page takes: first views, any step of a run over a billion samples, a scroll.

``PYTHONPATH=tests python tests/benchmarks/bench_page.py``, three minutes. Times are those of
requests over loopback on connections of their own, from a page that was asked the same once before.
The ceiling is what a person notices, a tenth of a second. The last lines are what looking at the
live view takes: of a server for one question of its page, which asks one a second, and of streams.

``--only-paint`` measures when a Chromium whose cache is empty first shows something of each view of
a dataset of 3.7 million samples, a minute; the ceiling is 200 ms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from playwright.sync_api import Browser, sync_playwright

from headrace.client import NumpyDataset
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.status import status_of
from headrace.server.telemetry.stream_counts import StreamTally
from page.test_browser import CHROMIUM
from support.datasets import write_dataset, write_manifest
from support.page_samples import shapes_table
from support.paged import Paged, paged, served_page

_SAMPLES = 1_000_000_000
_SHARDS, _BLOCKS = 1000, 64
_TIMES = 20
_STREAMS = 256
_PAIRS = 45
_FLIGHTS = 3_700_000
_PAINTS = 7
_PAINTED = (
    *("", "/samples", "/batch", "/batch?ranks=dp%3D4,tp%3D2", "/order?label=carrier"),
    *("/column/1", "/versions"),
)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-streams", action="store_true", help="what looking costs streams")
    parser.add_argument("--only-paint", action="store_true", help="when a browser shows something")
    options = parser.parse_args()
    if options.only_streams or options.only_paint:
        (_streams if options.only_streams else _paints)()
        return
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(f"{folder}/shapes", shapes_table(600), shard_samples=[300, 300])
        counts = np.full((_SHARDS, _BLOCKS), _SAMPLES // (_SHARDS * _BLOCKS))
        write_manifest(f"{folder}/huge", counts, counts * 1000, stored_bytes=1 << 20)
        with paged({name: str(Path(folder) / name) for name in ("shapes", "huge")}) as page:
            print(f"{os.cpu_count()} processors; milliseconds, median and most of {_TIMES}")
            for title, target in _views():
                _show(title, page, target)
            _steps(page)
            _scroll(page)
    _question()
    _streams()


def _streams() -> None:
    """Read as a trainer does, in turn while somebody looks at the live view and while nobody does.

    A stream that goes on is cut into seconds. At the beginning of every other one another process
    asks for the live view, as a browser does. Neighbouring seconds are compared, since a machine's
    speed drifts; the bounds are those of the median, with 95 %.
    """
    with tempfile.TemporaryDirectory() as folder:
        numbers = pa.table({"x": np.arange(5_000_000, dtype=np.int64)})
        write_dataset(f"{folder}/numbers", numbers, shard_samples=[2_500_000] * 2)
        with (
            served_page(Path(folder), names=("numbers",)) as (server, page),
            NumpyDataset(server.address, "numbers", batch_size=256) as dataset,
            subprocess.Popen(
                [sys.executable, "-c", _LOOKER, page.url], stdin=subprocess.PIPE, text=True
            ) as looker,
        ):
            assert looker.stdin is not None
            clocks = [_clock(server.process.pid), _clock(_child(server.process.pid))]
            seconds = _seconds(itertools.chain.from_iterable(itertools.repeat(dataset)), clocks)
            found = []
            for turn in range(2 * _PAIRS + 4):
                if turn % 2 == 0:
                    looker.stdin.write("\n")
                    looker.stdin.flush()
                found.append(next(seconds))
    # The first four are to warm up.
    looked, not_looked = np.array(found[4::2]), np.array(found[5::2])
    _print_ratio("batches a second", looked[:, 0] / not_looked[:, 0])
    _print_ratio("server's time a batch", (looked / not_looked)[:, 1] / (looked / not_looked)[:, 0])
    page_ms = 1000 * float(np.median(looked[:, 2] - not_looked[:, 2]))
    print(f"{'the page takes for a look':28} {page_ms:6.1f} ms of a processor")


_LOOKER = """
import http.client, sys, urllib.parse
place = urllib.parse.urlsplit(sys.argv[1])
for _ in sys.stdin:
    browser = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    browser.request("GET", "/live")
    assert browser.getresponse().read()
    browser.close()
"""


def _paints() -> None:
    random = np.random.default_rng(2)
    flights = pa.table(
        {
            "carrier": np.sort(random.integers(0, 12, _FLIGHTS)),
            "delay": random.normal(8, 20, _FLIGHTS),
            "distance": random.integers(0, 5000, _FLIGHTS),
        }
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        write_dataset(f"{folder}/flights", flights, shard_samples=[_FLIGHTS // 4] * 4)
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        with served_page(Path(folder), names=("flights",)) as (_, page):
            print(f"{os.cpu_count()} processors; milliseconds, first, median and most of {_PAINTS}")
            for view in ("/", *(f"/d/flights{one}" for one in _PAINTED), "/live", "/run"):
                first, *found = [_paint(browser, page.url + view) for _ in range(_PAINTS + 1)]
                paint, whole = (statistics.median(each) for each in zip(*found, strict=True))
                print(
                    f"{view:28} first {first[0]:6.0f}  then {paint:6.0f} {max(found)[0]:6.0f}  "
                    f"whole {whole:6.0f}"
                )
        browser.close()


def _paint(browser: Browser, url: str) -> tuple[float, float]:
    """Return when a browser without a cache showed something, and when all was there."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        tab = context.new_page()
        tab.goto(url)
        found = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        painted: float = tab.wait_for_function(found).json_value()
        whole: float = tab.evaluate(
            "() => performance.getEntriesByType('navigation')[0].loadEventEnd"
        )
        return painted, whole


def _clock(process: int) -> int:
    """Return the number of the clock of a process's processor time."""
    return (~process << 3) | 2


def _child(process: int) -> int:
    """Return the page of a server."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    (child,) = {int(one) for task in tasks for one in (task / "children").read_text().split()}
    return child


def _seconds(batches: Iterable[object], clocks: Sequence[int]) -> Iterator[tuple[float, ...]]:
    """Yield for each second the batches that came, and what processes took of a processor."""
    until = time.monotonic() + 1.0
    count, spent = 0, [time.clock_gettime(clock) for clock in clocks]
    for _ in batches:
        count += 1
        if time.monotonic() >= until:
            now = [time.clock_gettime(clock) for clock in clocks]
            yield (count, *(later - before for later, before in zip(now, spent, strict=True)))
            count, spent, until = 0, now, time.monotonic() + 1.0


def _print_ratio(what: str, ratios: NDArray[np.float64]) -> None:
    ratios = np.sort(ratios)
    middle, width = len(ratios) / 2, 0.98 * len(ratios) ** 0.5
    low, high = ratios[int(middle - width)], ratios[int(middle + width)]
    print(f"{what:28} {np.median(ratios):6.3f} times, {low:.3f} to {high:.3f}: looked at, of not")


def _question() -> None:
    metrics = Metrics()
    for number in range(_STREAMS):
        tally = StreamTally(metrics.streams, f"dataset-{number % 8}", number)
        tally.begin()
        tally.sent(batches=1, samples=1, payload_bytes=1, place=(0, 1, 1))
    began = time.perf_counter()
    for _ in range(_TIMES):
        json.dumps(status_of(metrics.registry.collect(), metrics.streams.rows()))
    took = 1000 * (time.perf_counter() - began) / _TIMES
    print(f"{'one question, 256 streams':28} {took:6.1f} ms, {took / 10:.2f} % of a processor")


def _views() -> list[tuple[str, str]]:
    return [
        ("datasets", "/"),
        ("a dataset", "/d/shapes"),
        ("24 samples", "/d/shapes/samples"),
        ("a histogram", "/d/shapes/column/1"),
        ("an order by class", "/d/shapes/order?label=label"),
        ("a batch on 8 ranks", "/d/shapes/batch"),
    ]


def _took(page: Paged, target: str) -> float:
    began = time.perf_counter()
    assert page.ask(target).status == 200, target
    return 1000 * (time.perf_counter() - began)


def _show(title: str, page: Paged, target: str) -> None:
    first = _took(page, target)
    found = [_took(page, target) for _ in range(_TIMES)]
    print(f"{title:28} first {first:6.0f}  then {statistics.median(found):6.1f} {max(found):6.1f}")


def _steps(page: Paged) -> None:
    random = np.random.default_rng(0)
    query = "/d/huge/batch?batch=1024&ranks=8&step="
    first = _took(page, query + "0")
    steps = random.integers(0, _SAMPLES // 1024, _TIMES).tolist()
    found = [_took(page, f"{query}{step}") for step in steps]
    title = "any step of 10^9 samples"
    print(f"{title:28} first {first:6.0f}  then {statistics.median(found):6.1f} {max(found):6.1f}")


def _scroll(page: Paged) -> None:
    began, count = time.perf_counter(), 0
    for at in (0, 100, 200, 300, 400, 500) * 2:
        text = page.ask(f"/d/shapes/samples?n=100&at={at}").text
        count += text.count("<article")
    print(f"{'samples scrolled':28} {count / (time.perf_counter() - began):6.0f} a second")


if __name__ == "__main__":
    main()
