"""Claims about the picture of a mesh: it is what servers send."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.group import run
from headrace.client import NumpyDataset, Sharding
from support.datasets import write_rows
from support.running import server_of

_MESH = ["--mesh", "pp=2,dp=2,cp=2", "--sequence", "8", "--layout", "zigzag"]


def test_each_rank_has_its_samples_and_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the second step of an epoch, in the order of ranks."""
    url = str(tmp_path / "d")
    write_rows(url, sample_count=64, width=1)
    given = ["--global-batch-size", "8", "--seed", "7", "--step", "1"]

    assert 0 == run(["order", url, *given, *_MESH])
    header, *rows = capsys.readouterr().out.splitlines()

    assert ["rank", "pp", "dp", "cp", "samples", "of", "each", "sequence"] == header.split()
    parts = [",".join(row.split()[4:5]) for row in rows]
    with server_of({"d": url}) as server:
        wanted = []
        for rank in range(2):
            sharding = Sharding(global_batch_size=8)
            with NumpyDataset(
                *(server.address, "d"), seed=7, rank=rank, world_size=2, sharding=sharding
            ) as dataset:
                batches = iter(dataset)
                next(batches)
                wanted.append(",".join(map(str, next(batches)["x"][:, 0].astype(int).tolist())))
    assert [wanted[0]] * 2 + [wanted[1]] * 2 == parts[:4]
    assert parts[:4] == parts[4:]
    assert ["0:2 6:8", "2:6"] * 4 == [" ".join(row.split()[5:]) for row in rows]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--mesh", "dp=x"], "--mesh is 'dp=x'"),
        (["--mesh", "dp=2,dp=4"], "--mesh is 'dp=2,dp=4'"),
        (["--mesh", "dp=" + "9" * 5000], "--mesh is 'dp=999"),
        (["--mesh", "dp=1,cp=3", "--sequence", "8"], "--sequence is 8"),
        (["--mesh", "dp=2", "--step", "99"], "an epoch has 8 steps"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], words: str
) -> None:
    """With what was found."""
    url = str(tmp_path / "d")
    write_rows(url, sample_count=64, width=1)

    assert 0 != run(["order", url, "--global-batch-size", "8", *given])
    assert words in capsys.readouterr().err
