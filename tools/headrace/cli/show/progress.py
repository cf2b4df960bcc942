"""Show the progress of long work: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from headrace.cli.show.texts import size

if TYPE_CHECKING:
    from headrace.converter import Progress
    from headrace.loadtest import Progress as SwarmProgress
    from headrace.storage import Compaction

_Progress = TypeVar("_Progress")

_LINE_S = 10.0
"""Seconds between two log lines (arbitrary)."""


class _State(NamedTuple):
    """How far work is: what is being done, how much of it, and its share in [0, 1] if known."""

    what: str
    amount: str
    share: float | None


def conversion_progress() -> AbstractContextManager[Callable[[Progress], None]]:
    """Yield a function that shows the progress of a conversion on standard error."""
    passes = _Passes()

    def state(now: Progress) -> _State:
        elapsed_s = passes.update(now)
        checked, left = now.checked_bytes, now.unchecked_bytes
        whole = checked + left if left else now.tasks_total
        share = (checked or now.tasks_done) / whole if whole else None
        return _State(passes.name, amount(now, elapsed_s), share)

    return _progress(passes.name, state)


def count_progress(
    what: str, *, total: int, unit: str
) -> AbstractContextManager[Callable[[int], None]]:
    """Yield a function that takes the number of finished items of ``total``."""
    return _progress(
        what,
        lambda done: _State(what, f"{done:,} of {total:,} {unit}", done / total if total else None),
    )


@contextmanager
def shard_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the number of finished shards or files, and their total."""

    def state(now: tuple[int, int]) -> _State:
        done, total = now
        return _State(what, f"{done:,} of {total:,}", done / total if total else None)

    with _progress(what, state) as show:
        yield lambda done, total: show((done, total))


def compact_progress() -> AbstractContextManager[Callable[[Compaction], None]]:
    """Yield a function that takes the progress of a compaction."""
    began_s = time.monotonic()
    resumed_bytes: list[int] = []  # of an earlier run, which say nothing about the rate

    def state(now: Compaction) -> _State:
        resumed_bytes.append(now.raw_bytes_done)
        rate = (now.raw_bytes_done - resumed_bytes[0]) / max(time.monotonic() - began_s, 1e-9)
        del resumed_bytes[1:]
        text = (
            f"{now.shards_done:,} of {now.shards_total:,} shards, {size(now.raw_bytes_done)} of "
            f"{size(now.raw_bytes_total)}, {size(int(rate))}/s"
        )
        return _State("compacting", text, now.raw_bytes_done / max(now.raw_bytes_total, 1))

    return _progress("compacting", state)


def swarm_progress() -> AbstractContextManager[Callable[[SwarmProgress], None]]:
    """Yield a function that takes the progress of a load test."""

    def state(now: SwarmProgress) -> _State:
        elapsed_s = max(now.elapsed_s, 1e-9)
        waiting = now.waited_s / (elapsed_s * now.ranks)
        text = (
            f"{now.ranks:,} ranks  {now.batches:,} batches  "
            f"{now.samples / elapsed_s:,.0f} samples/s  "
            f"{size(int(now.payload_bytes / elapsed_s))}/s  waiting {min(waiting, 1.0):.0%}"
        )
        return _State("load test", text, now.share)

    return _progress("load test", state)


@contextmanager
def _progress(
    what: str, state_of: Callable[[_Progress], _State]
) -> Iterator[Callable[[_Progress], None]]:
    """Yield a function that shows progress on standard error.

    Args:
        what: What is done at first.
        state_of: Called at each progress, in turn.
    """
    if not sys.stderr.isatty():
        is_due = _Throttle()

        def show_line(now: _Progress) -> None:
            state = state_of(now)
            if is_due():
                click.echo(f"{state.what}: {state.amount}", err=True)

        yield show_line
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, amount="")

        def show(now: _Progress) -> None:
            state = state_of(now)
            if state.what != bar.tasks[0].description:
                bar.reset(task, description=state.what)  # the time left is that of this pass
            total = None if state.share is None else 1.0
            bar.update(task, completed=state.share or 0.0, total=total, amount=state.amount)

        yield show


class _Passes:
    """Tell the passes of a conversion apart: checking, shuffling and converting.

    Attributes:
        name: The name of the latest pass.
    """

    def __init__(self) -> None:
        self.name = "converting"
        self._began_s = time.monotonic()

    def update(self, progress: Progress) -> float:
        """Return the seconds since the current pass started."""
        now = time.monotonic()
        found = "converting"
        if progress.checked_bytes:
            found = "checking"
        elif progress.shuffled_bytes:
            found = "shuffling"
        is_new, self.name = found != self.name, found
        if is_new and found != "checking":
            self._began_s = now  # the first pass, checking, starts with the command
        return now - self._began_s


class _Throttle:
    """Return True when `_LINE_S` have passed since the last time."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._last < _LINE_S:
            return False
        self._last = now
        return True


def amount(progress: Progress, elapsed_s: float) -> str:
    """Return the progress and the rate of a conversion as text."""
    if progress.checked_bytes:
        speed = size(int(progress.checked_bytes / max(elapsed_s, 1e-9)))
        whole = progress.checked_bytes + progress.unchecked_bytes
        of = f" of {size(whole)}" if progress.unchecked_bytes else ""
        return f"{size(progress.checked_bytes)}{of}, {speed}/s"
    if progress.shuffled_bytes:
        speed = size(int(progress.shuffled_bytes / max(elapsed_s, 1e-9)))
        return (
            f"{progress.tasks_done} of {progress.tasks_total} parts, "
            f"{size(progress.shuffled_bytes)} read, {size(progress.spilled_bytes)} spilled, "
            f"{speed}/s"
        )
    if not progress.tasks_total:
        return "no task has started yet"
    rate = int(progress.raw_bytes / max(elapsed_s, 1e-9))
    return (
        f"{progress.tasks_done} of {progress.tasks_total} tasks, {progress.shard_count:,} shards, "
        f"{progress.sample_count:,} samples, {size(progress.raw_bytes)}, {size(rate)}/s"
    )
