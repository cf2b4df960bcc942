"""Tests of the threads that work on rows of images: shared fairly, left quickly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from headrace.errors import StageFailedError
from headrace.server.batch.row_pool import RowPool, Waits, allowed_processors
from support.waiting import until

_SOON_S = 10.0


@pytest.fixture
def pool() -> Iterator[RowPool]:
    """Two threads."""
    found = RowPool(2)
    yield found
    found.close()


def _finish(work: Waits[None]) -> None:
    for finished in work:
        finished.wait(0.02)


def _beside(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_each_row_once(pool: RowPool) -> None:
    """Each row is worked on once, and begun in order, by no more threads than there are."""
    begun: list[int] = []
    running, most = 0, 0
    lock = threading.Lock()

    def do(row: int) -> None:
        nonlocal running, most
        with lock:
            begun.append(row)
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1

    _finish(pool.work("a", 100, do, timeout_s=_SOON_S))

    assert list(range(100)) == sorted(begun)
    # Two that begin at once may come here in either order.
    assert all(abs(row - place) <= 1 for place, row in enumerate(begun))
    assert most == 2


def test_nothing_to_do(pool: RowPool) -> None:
    """A batch without rows needs no thread."""
    _finish(pool.work("a", 0, lambda _: None, timeout_s=_SOON_S))

    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-rows"]


def test_first_failure(pool: RowPool) -> None:
    """The failure of the first row that fails is raised, and soon no further row is begun."""
    begun = []

    def do(row: int) -> None:
        begun.append(row)
        if row in {3, 4}:
            time.sleep(0.02 if row == 3 else 0.0)
            raise StageFailedError(f"row {row}", row=row)

    with pytest.raises(StageFailedError, match="row 3"):
        _finish(pool.work("a", 1000, do, timeout_s=_SOON_S))
    assert len(begun) < 20


def test_left(pool: RowPool) -> None:
    """Who leaves waits for the rows that are worked on, and none is begun afterwards."""
    begun: list[int] = []
    finished: list[int] = []

    def do(row: int) -> None:
        begun.append(row)
        time.sleep(0.05)
        finished.append(row)

    with closing(pool.work("a", 1000, do, timeout_s=_SOON_S)) as work:
        next(work)
    seen = len(begun)
    time.sleep(0.2)

    assert len(begun) == seen == len(finished)


def test_late(pool: RowPool) -> None:
    """A batch that takes longer than it may fails, and says what to do."""
    with pytest.raises(StageFailedError, match="stage_timeout_s"):
        _finish(pool.work("a", 1000, lambda _: time.sleep(0.02), timeout_s=0.1))


def test_closed(pool: RowPool) -> None:
    """Closing ends waits and threads, and whoever comes afterwards is told."""
    failures: list[BaseException] = []
    begun = threading.Event()

    def do(_: int) -> None:
        begun.set()
        time.sleep(0.02)

    def run() -> None:
        try:
            _finish(pool.work("a", 10_000, do, timeout_s=1000))
        except StageFailedError as error:
            failures.append(error)

    thread = _beside(run)
    assert begun.wait(_SOON_S)
    pool.close()
    thread.join(_SOON_S)

    assert not thread.is_alive()
    assert len(failures) == 1
    with pytest.raises(StageFailedError, match="shutting down"):
        _finish(pool.work("a", 1, do, timeout_s=_SOON_S))
    assert not [each for each in threading.enumerate() if each.name == "headrace-rows"]


def test_callers_share(pool: RowPool) -> None:
    """One caller with ten streams gets about as much as another with one."""
    counts = {"many": 0, "one": 0}
    over = threading.Event()

    def run(caller: str) -> None:
        def do(_: int) -> None:
            time.sleep(0.001)
            counts[caller] += 1

        while not over.is_set():
            _finish(pool.work(caller, 100, do, timeout_s=_SOON_S))

    threads = [_beside(lambda: run("many")) for _ in range(10)]
    threads.append(_beside(lambda: run("one")))
    until(lambda: sum(counts.values()) > 2000)
    # What the ten have begun they end, which is no share.
    one, many = counts["one"], counts["many"]
    over.set()
    for thread in threads:
        thread.join()

    assert 0.7 < one / many < 1.4


def test_a_caller_leaves_a_processor_to_others_while_they_need_it() -> None:
    """Others have what it leaves."""
    processors = allowed_processors()
    begun, free = list[str](), threading.Event()
    pool = RowPool(max(2, processors), lambda caller: caller == "other")

    def does(name: str) -> Callable[[int], None]:
        def do(_: int) -> None:
            begun.append(name)
            assert free.wait(_SOON_S)

        return do

    with closing(pool):
        mine = pool.work("mine", 3 * processors, does("mine"), timeout_s=60)
        next(mine)
        until(lambda: len(begun) == max(1, processors - 1))
        other = pool.work("other", 1, does("other"), timeout_s=60)
        next(other)
        until(lambda: "other" in begun)
        assert begun.count("mine") == max(1, processors - 1)
        free.set()
        for work in (other, mine):
            _finish(work)


def test_a_caller_has_all_threads_again_when_it_is_alone() -> None:
    """No row has to end for that."""
    processors = allowed_processors()
    is_alone, free = threading.Event(), threading.Event()
    begun: list[int] = []
    pool = RowPool(max(2, processors), lambda _: is_alone.is_set())

    def do(row: int) -> None:
        begun.append(row)
        assert free.wait(_SOON_S)

    with closing(pool):
        work = pool.work("mine", 3 * processors, do, timeout_s=60)
        next(work)
        until(lambda: len(begun) == max(1, processors - 1))
        is_alone.set()
        until(lambda: len(begun) == max(2, processors))
        free.set()
        _finish(work)


def test_a_line_is_in_order(pool: RowPool) -> None:
    """Rows of a line's second batch are begun after those of its first, and others are not held up.

    The first batch has worked longest when the second one comes, and would be last without a line.
    """
    line = object()
    begun: list[str] = []
    free = threading.Event()

    def does(name: str) -> Callable[[int], None]:
        def do(_: int) -> None:
            begun.append(name)
            assert free.wait(_SOON_S)
            time.sleep(0.001)

        return do

    first = pool.work("a", 50, does("first"), timeout_s=_SOON_S, line=line)
    next(first)
    until(lambda: len(begun) == 2)
    second = pool.work("a", 50, does("second"), timeout_s=_SOON_S, line=line)
    other = pool.work("a", 10, does("other"), timeout_s=_SOON_S)
    next(second)
    next(other)
    free.set()
    for work in (first, second, other):
        _finish(work)

    assert begun.index("second") > max(at for at, name in enumerate(begun) if name == "first")
    # What was begun ten times before is not begun last.
    assert max(at for at, name in enumerate(begun) if name == "other") < begun.index("second")


def test_a_line_that_always_waits_leaves_its_share_to_others(pool: RowPool) -> None:
    """A stream whose next batch always waits does not hold up one whose rows take longer."""
    worked: list[str] = []
    is_done = threading.Event()

    def work(line: str, rows: int, row_s: float) -> None:
        def do(_: int) -> None:
            time.sleep(row_s)
            worked.append(line)

        _finish(pool.work("a", rows, do, timeout_s=60, line=line))

    def always(line: str) -> None:
        while not is_done.is_set():
            work(line, 8, 0.001)

    # Two threads for each line: one batch waits while another is made.
    threads = [_beside(lambda line=line: always(line)) for line in ("x", "x", "y", "y")]  # type: ignore[misc] # a default argument
    until(lambda: len(worked) > 20)
    slow = _beside(lambda: work("slow", 16, 0.005))
    slow.join(30)
    found = list(worked)
    is_done.set()
    for thread in threads:
        thread.join()

    assert found.count("slow") == 16
    # In its 80 ms the others get about as much each: 160 rows of 1 ms.
    assert len(found) < 2000


def test_a_crash_is_told(pool: RowPool) -> None:
    """What nobody foresaw fails the batch, and the thread lives on."""

    def do(row: int) -> None:
        raise ValueError(row)

    with pytest.raises(StageFailedError, match="ValueError"):
        _finish(pool.work("a", 3, do, timeout_s=_SOON_S))

    _finish(pool.work("a", 3, lambda _: None, timeout_s=_SOON_S))
