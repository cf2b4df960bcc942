"""Tests of the log: one line an event, for people and for programs."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from headrace.server.telemetry.logs import ConsoleLines, JsonLines, event

_TEXT = "two\nlines"


def _record(**extra: object) -> logging.LogRecord:
    record = logging.getLogger("headrace.test").makeRecord(
        "headrace.test", logging.WARNING, "f", 1, "stream of %s ended", ("d",), None, extra=extra
    )
    record.created = 1_700_000_000.25
    return record


def _failed() -> logging.LogRecord:
    record = _record()
    try:
        int(_TEXT)
    except ValueError:
        record.exc_info = sys.exc_info()
    return record


def test_a_line_for_programs() -> None:
    """JSON has the time in UTC, the text, and each field under its own name."""
    line = JsonLines().format(_record(**event(dataset="d", batches=3)))

    assert {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "headrace.test",
        "message": "stream of d ended",
        "dataset": "d",
        "batches": 3,
    } == json.loads(line)


def test_a_line_for_people() -> None:
    """The console has the text first and the fields behind it, quoted where they need it."""
    line = ConsoleLines().format(_record(**event(dataset="a b", seconds=1.23456789, empty="")))

    assert (
        '2023-11-14T22:13:20.250Z WARNING stream of d ended dataset="a b" seconds=1.23457 empty=""'
    ) == line


@pytest.mark.parametrize("formatter", [ConsoleLines(), JsonLines()])
def test_a_traceback_is_one_line(formatter: logging.Formatter) -> None:
    """An error with lines in its text is still one event of one line, with all of its words."""
    line = formatter.format(_failed())

    assert 1 == len(line.splitlines())
    assert "ValueError" in line
    assert "lines" in line


@pytest.mark.parametrize("formatter", [ConsoleLines(), JsonLines()])
@pytest.mark.parametrize("place", ["message", "field", "traceback"])
def test_what_a_client_sends_cannot_command_a_terminal(
    formatter: logging.Formatter, place: str
) -> None:
    """Escape sequences, bells, text that turns around and other line ends are never raw."""
    hostile = (
        "\x1b[2J \x07 \x00 \x08 \r \x7f \x85 \x9b31m \u200b \u200f \u2028 \u202e \u2066 "
        "\ufeff \ud800 \U000e0001"
    )
    record = _record(**event(where=hostile if place == "field" else ""))
    record.args = (hostile if place == "message" else "",)
    if place == "traceback":
        record.exc_info = (ValueError, ValueError(hostile), None)

    line = formatter.format(record)

    assert line.isprintable()
    assert "2J" in line
    assert "202e" in line


_PROGRAM = """
import logging, sys, threading, warnings
from headrace.server import start_logging
start_logging("debug", "json")
logging.getLogger("headrace.server").debug("ours")
logging.getLogger("botocore").debug("x-amz-security-token: theirs")
logging.getLogger("botocore").warning("grave")
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0, name="doomed")
thread.start()
thread.join()
"""


def test_all_that_a_process_says_is_events() -> None:
    """Warnings and dying threads are events; other packages say nothing below a warning."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=240, check=True
    )
    events = [json.loads(line) for line in done.stderr.splitlines()]

    assert ["ours", "grave"] == [one["message"] for one in events[:2]]
    assert "old" in events[2]["message"]
    assert ("doomed ended because of a bug", True) == (
        events[3]["message"],
        "ZeroDivisionError" in events[3]["traceback"],
    )
    assert "theirs" not in done.stderr
