"""Each mistake of a first hour is answered by what was found, what was wanted, and what to type."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.converter  # noqa: F401 - a command that loads it first would not be told from a slow one
from first_hour.mistakes import CALLS, COMMANDS, Mistake, Stage
from headrace.cli.group import run
from headrace.client import RemoteDataset
from support.datasets import small_table, write_dataset
from support.running import server_of

MOST_S = 2.0
"""Of this thread's own time on a processor, however busy the machine is."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server of a dataset of 600 samples, and a folder with files of all kinds."""
    folder = tmp_path_factory.mktemp("hour")
    url = folder / "data" / "small"
    write_dataset(str(url), small_table(600), shard_samples=[250, 50, 300])
    (folder / "empty").mkdir()
    files = {
        "a.csv": "x,y\n1,2\n3,4\n",
        "empty.csv": "",
        "ragged.csv": "x,y\n1,2\n3\n",
        "a.xyz": "1 2 3",
        "broken.json": "{",
        "broken.yaml": "datasets: [d\n",
        "typo.yaml": f"datsets: {{d: {url}}}\n",
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        free = unused.getsockname()[1]
        with server_of({"small": str(url)}) as server:
            places = {
                "ADDR": server.address,
                "FREE": f"127.0.0.1:{free}",
                "URL": str(url),
                "DIR": str(folder),
            }
            with RemoteDataset(server.address, "small", batch_size=8) as dataset:
                batch = next(iter(dataset))
                stage = Stage(places, batch, dataset.state_dict())
            yield stage
            for made in stage.made:
                made.close()


def _placed(text: str, stage: Stage) -> str:
    for word, place in stage.places.items():
        text = text.replace(f"{{{word}}}", place)
    return text


def _check(mistake: Mistake, answer: str, stage: Stage) -> None:
    for part in (mistake.found, mistake.wanted, mistake.following):
        assert _placed(part, stage) in answer


def test_there_are_enough_of_them() -> None:
    """Eighty and more, each once."""
    mistakes = [str(mistake) for mistake in (*COMMANDS, *CALLS)]

    assert len(mistakes) >= 80
    assert len(set(mistakes)) == len(mistakes)


@pytest.mark.parametrize("mistake", COMMANDS, ids=str)
def test_a_mistyped_command_is_answered_in_one_line(
    mistake: Mistake, stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, with the exit code that says whose fault it was, and nothing on the output."""
    began = time.thread_time()
    code = run([_placed(part, stage) for part in mistake.typed.split()])
    took_s = time.thread_time() - began
    found = capsys.readouterr()

    assert (mistake.code, "") == (code, found.out)
    assert 1 == found.err.count("\n"), found.err
    _check(mistake, found.err, stage)
    assert took_s < MOST_S
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("mistake", CALLS, ids=str)
def test_a_mistaken_call_is_answered_by_its_error(mistake: Mistake, stage: Stage) -> None:
    """Of headrace, or of the kind that Python has for it."""
    began = time.thread_time()
    with pytest.raises(Exception, match=r"\S") as caught:
        stage.call(mistake.typed)
    took_s = time.thread_time() - began

    _check(mistake, str(caught.value), stage)
    assert took_s < MOST_S
