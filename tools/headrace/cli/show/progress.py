"""Show the progress of long work: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli.show.texts import size

if TYPE_CHECKING:
    from headrace.converter import Progress
    from headrace.loadtest import Progress as SwarmProgress
    from headrace.storage import Compaction

_Progress = TypeVar("_Progress")

_LINE_S = 10.0
"""Seconds between two log lines (arbitrary)."""


@contextmanager
def conversion_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows the progress of a conversion on standard error."""
    if not sys.stderr.isatty():
        yield _conversion_lines()
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
    passes = _Passes()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("converting", total=None, amount="")

        def show(progress: Progress) -> None:
            is_new, elapsed_s = passes.update(progress)
            if is_new:
                bar.reset(task, description=passes.name)
            checked, left = progress.checked_bytes, progress.unchecked_bytes
            bar.update(
                task,
                completed=checked or progress.tasks_done,
                total=(checked + left if left else progress.tasks_total) or None,
                amount=amount(progress, elapsed_s),
            )

        yield show


@contextmanager
def count_progress(what: str, *, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of finished items of ``total``."""
    if not sys.stderr.isatty():
        yield _count_lines(what, total, unit)
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def shard_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the number of finished shards or files, and their total."""
    if not sys.stderr.isatty():
        is_due = _Throttle()

        def show_line(done: int, total: int) -> None:
            if is_due():
                click.echo(f"{what}: {done:,} of {total:,}", err=True)

        yield show_line
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def compact_progress() -> AbstractContextManager[Callable[[Compaction], None]]:
    """Yield a function that takes the progress of a compaction."""
    began_s = time.monotonic()
    resumed_bytes: list[int] = []  # of an earlier run, which say nothing about the rate

    def text(now: Compaction) -> str:
        resumed_bytes.append(now.raw_bytes_done)
        rate = (now.raw_bytes_done - resumed_bytes[0]) / max(time.monotonic() - began_s, 1e-9)
        del resumed_bytes[1:]
        return (
            f"{now.shards_done:,} of {now.shards_total:,} shards, {size(now.raw_bytes_done)} of "
            f"{size(now.raw_bytes_total)}, {size(int(rate))}/s"
        )

    def share(now: Compaction) -> float:
        return now.raw_bytes_done / max(now.raw_bytes_total, 1)

    return _share_progress("compacting", text, share)


def swarm_progress() -> AbstractContextManager[Callable[[SwarmProgress], None]]:
    """Yield a function that takes the progress of a load test."""
    return _share_progress("load test", _swarm_amount, lambda progress: progress.share)


@contextmanager
def _share_progress(
    what: str, text: Callable[[_Progress], str], share: Callable[[_Progress], float]
) -> Iterator[Callable[[_Progress], None]]:
    """Yield a function that takes progress, shown with its text and its share in [0, 1]."""
    if not sys.stderr.isatty():
        is_due = _Throttle()

        def show_line(now: _Progress) -> None:
            line = text(now)
            if is_due():
                click.echo(f"{what}: {line}", err=True)

        yield show_line
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (BarColumn(), TextColumn("{task.fields[amount]}"), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0, amount="")
        yield lambda now: bar.update(task, completed=share(now), amount=text(now))


def _swarm_amount(progress: SwarmProgress) -> str:
    elapsed_s = max(progress.elapsed_s, 1e-9)
    waiting = progress.waited_s / (elapsed_s * progress.ranks)
    return (
        f"{progress.ranks:,} ranks  {progress.batches:,} batches  "
        f"{progress.samples / elapsed_s:,.0f} samples/s  "
        f"{size(int(progress.payload_bytes / elapsed_s))}/s  waiting {min(waiting, 1.0):.0%}"
    )


def _count_lines(what: str, total: int, unit: str) -> Callable[[int], None]:
    is_due = _Throttle()

    def show(done: int) -> None:
        if is_due():
            click.echo(f"{what}: {done:,} of {total:,} {unit}", err=True)

    return show


def _conversion_lines() -> Callable[[Progress], None]:
    is_due = _Throttle()
    passes = _Passes()

    def show(progress: Progress) -> None:
        _, elapsed_s = passes.update(progress)
        if is_due():
            click.echo(f"{passes.name}: {amount(progress, elapsed_s)}", err=True)

    return show


class _Passes:
    """Tell the passes of a conversion apart: checking, shuffling and converting.

    Attributes:
        name: The name of the latest pass.
    """

    def __init__(self) -> None:
        self.name = "converting"
        self._began_s = time.monotonic()

    def update(self, progress: Progress) -> tuple[bool, float]:
        """Return whether a new pass has started, and the seconds since the current one started."""
        now = time.monotonic()
        found = "converting"
        if progress.checked_bytes:
            found = "checking"
        elif progress.shuffled_bytes:
            found = "shuffling"
        is_new, self.name = found != self.name, found
        if is_new and found != "checking":
            self._began_s = now  # the first pass, checking, starts with the command
        return is_new, now - self._began_s


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
