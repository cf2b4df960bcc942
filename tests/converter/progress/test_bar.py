"""The progress bar: what it says, and where."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.converter import Progress
from headrace.converter.progress.bar import Bar, LogLine, TerminalLine, bar_text

HALF = Progress(tasks_done=2, tasks_total=4, shard_count=3, sample_count=1500, raw_bytes=6 << 20)
DEADLINE_S = 280.0
SHOW = "from headrace.converter.progress.bar import open_line; line = open_line(); "


def test_it_says_how_far_how_fast_and_how_long() -> None:
    """Tasks, shards, samples, bytes, rate, time, and time left at the rate of the tasks done."""
    text = bar_text(HALF, elapsed_s=3.0)

    assert text == (
        "[############............] 2/4 tasks  3 shards  1,500 samples  6.0 MiB  2.0 MiB/s  "
        "0:03  0:03 left"
    )


def test_it_guesses_nothing_before_the_first_task() -> None:
    """No time left, no rate, and no division by nothing."""
    assert "[........................] 0/0 tasks  1:01:01" == bar_text(
        Progress(0, 0, 0, 0, 0), elapsed_s=3661.0
    )


def test_a_terminal_is_written_over() -> None:
    """One line, of which a shorter text leaves no rest."""
    stream = io.StringIO()
    line = TerminalLine(stream)
    times = iter([0.0, 1.0, 2.0])
    bar = Bar(line, clock=lambda: next(times))
    bar(HALF)
    bar(Progress(0, 0, 0, 0, 0))
    line.end()

    first, second = stream.getvalue().removeprefix("\r").split("\r")
    assert "2/4 tasks" in first
    assert "0/0 tasks" in second
    assert len(first) == len(second.removesuffix("\n"))


def test_a_log_gets_a_line_in_a_while() -> None:
    """The first after ten seconds, the next ten seconds on."""
    stream = io.StringIO()
    times = iter([0.0, 9.0, 10.0, 10.0, 19.0])
    line = LogLine(stream, clock=lambda: next(times))
    for text in ("early", "shown", "soon"):
        line.show(text)

    assert "shown\n" == stream.getvalue()


def test_a_real_terminal_is_found() -> None:
    """With a terminal as standard error the bar goes there, over and over."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", SHOW + "line.show('one'); line.show('two'); line.end()"],
        stderr=theirs,
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(theirs)
    said = os.read(ours, 4096)
    os.close(ours)

    assert 0 == done.returncode
    assert b"\rone\rtwo\r\n" == said


@pytest.mark.long
def test_a_real_notebook_is_found(tmp_path: Path) -> None:
    """In a kernel of Jupyter it is one output of the cell, and the last text is what stays."""
    script = f"""
import nbformat, sys
from nbclient import NotebookClient
cell = nbformat.v4.new_code_cell({SHOW + "line.show('one'); line.show('two'); line.end()"!r})
notebook = nbformat.v4.new_notebook(cells=[cell])
NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
(output,) = notebook.cells[0].outputs
open(sys.argv[1], "w").write(output["data"]["text/plain"])
"""
    said = tmp_path / "said"
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-c", script, str(said)],
            stdout=log,
            stderr=log,
            timeout=DEADLINE_S,
            check=False,
        )

    assert 0 == done.returncode, (tmp_path / "log").read_text()
    assert "two" == said.read_text()
