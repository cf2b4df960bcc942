"""A progress bar in a terminal or a notebook, with nothing but Python and IPython."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, TextIO

from headrace.converter.progress.progress import Progress
from headrace.errors import BadArgumentError

_WIDTH = 24  # characters of the bar itself
_LINE_S = 10.0  # between two lines without a terminal or a notebook; arbitrary


class Line(Protocol):
    """One line of text that can be replaced."""

    def show(self, text: str) -> None:
        """Replace the text of the line."""

    def end(self) -> None:
        """End the line, and leave its text in place."""


@contextlib.contextmanager
def shown(
    progress: Callable[[Progress], None] | Literal["bar"] | None,
) -> Iterator[Callable[[Progress], None] | None]:
    """Yield the function to call with progress: the user's, or a bar's; None for none.

    Raises:
        BadArgumentError: ``progress`` is neither a function nor ``"bar"``.
    """
    if progress is None or callable(progress):
        yield progress
        return
    if progress != "bar":
        raise BadArgumentError(
            f"progress is {progress!r}, expected a function or 'bar'", field="progress"
        )
    line = open_line()
    try:
        yield Bar(line, clock=time.monotonic)
    finally:
        line.end()


class Bar:
    """Shows on a line how far a conversion is: tasks, shards, samples, bytes, rate, time left."""

    def __init__(self, line: Line, *, clock: Callable[[], float]) -> None:
        self._line = line
        self._clock = clock
        self._start = clock()
        self._pass = ""

    def __call__(self, progress: Progress) -> None:
        """Show ``progress``."""
        checks, shuffles = bool(progress.checked_bytes), bool(progress.shuffled_bytes)
        found = "checking" if checks else "shuffling" if shuffles else "writing"
        if self._pass and found != self._pass:
            # The tasks start now.
            self._start = self._clock()
        self._pass = found
        self._line.show(bar_text(progress, elapsed_s=self._clock() - self._start))


def bar_text(progress: Progress, *, elapsed_s: float) -> str:
    """Return the text of the bar.

    The time left is estimated for the tasks that are left, at the rate of those that are done.
    """
    if progress.checked_bytes:
        return "  ".join([*_checked(progress, elapsed_s), _time(elapsed_s)])
    if progress.shuffled_bytes:
        return "  ".join([*_shuffled(progress, elapsed_s), _time(elapsed_s)])
    done, total = progress.tasks_done, progress.tasks_total
    full = _WIDTH * done // total if total else 0
    bar = "#" * full + "." * (_WIDTH - full)
    parts = [f"[{bar}] {done}/{total} tasks"]
    if progress.shard_count:
        rate = progress.raw_bytes / max(elapsed_s, 1e-9)
        parts += [
            f"{progress.shard_count:,} shards",
            f"{progress.sample_count:,} samples",
            f"{progress.raw_bytes / 2**20:,.1f} MiB",
            f"{rate / 2**20:,.1f} MiB/s",
        ]
    parts.append(_time(elapsed_s))
    if 0 < done < total:
        parts.append(f"{_time(elapsed_s * (total - done) / done)} left")
    return "  ".join(parts)


def _checked(progress: Progress, elapsed_s: float) -> Iterator[str]:
    checked, left = progress.checked_bytes, progress.unchecked_bytes
    whole = f" of {(checked + left) / 2**20:,.1f}" if left else ""
    yield f"checked {checked / 2**20:,.1f}{whole} MiB"
    yield f"{checked / max(elapsed_s, 1e-9) / 2**20:,.1f} MiB/s"


def _shuffled(progress: Progress, elapsed_s: float) -> Iterator[str]:
    read, spilled = progress.shuffled_bytes / 2**20, progress.spilled_bytes / 2**20
    yield f"shuffling {progress.tasks_done}/{progress.tasks_total} parts"
    yield f"read {read:,.1f} MiB, spilled {spilled:,.1f} MiB"
    yield f"{read / max(elapsed_s, 1e-9):,.1f} MiB/s"


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def open_line() -> Line:
    """Return a line that people see: in a notebook's output, or on standard error."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return NotebookLine(ipython.display)
    if sys.stderr.isatty():
        return TerminalLine(sys.stderr)
    return LogLine(sys.stderr, clock=time.monotonic)


class TerminalLine:
    """A line of a terminal, which is overwritten."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._length = 0

    def show(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)

    def end(self) -> None:
        self._stream.write("\n")
        self._stream.flush()


class LogLine:
    """A new line every ten seconds, for logs."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._last = clock()

    def show(self, text: str) -> None:
        if self._clock() - self._last >= _LINE_S:
            self._last = self._clock()
            self._stream.write(text + "\n")
            self._stream.flush()

    def end(self) -> None:
        pass


class NotebookLine:
    """An output of a notebook cell, which is replaced in place."""

    def __init__(self, display: Any) -> None:
        self._module = display
        self._handle: Any = None

    def show(self, text: str) -> None:
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = self._module.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def end(self) -> None:
        pass
