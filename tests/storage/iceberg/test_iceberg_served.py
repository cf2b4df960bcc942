"""A loop over a table by its name: resumed exactly, and told when its snapshot has gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from headrace.cli.convert import command as convert
from headrace.cli.inspect import command as inspect
from headrace.client import RemoteDataset
from headrace.errors import DatasetNotFoundError, TokenDatasetChangedError
from headrace.storage import open_dataset
from storage.iceberg.iceberg_tables import delete_rows, new_catalog, write_rows
from support.private import end_servers
from support.rescaling import rescaled, rescaled_by_kills
from support.running import server_of

_URL = "iceberg://lake/n.t"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """A table of 100 numbers less five, and private servers that end with the test."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    catalog = new_catalog(tmp_path, monkeypatch)
    made = catalog.create_table("n.t", Schema(NestedField(1, "x", LongType(), required=False)))
    file = write_rows(made, _rows(range(60)))
    write_rows(made, _rows(range(60, 100)))
    delete_rows(made, {file.file_path: range(5)}, of=file, kind="vector")
    yield made
    end_servers(tmp_path / "run")


def _rows(numbers: range) -> list[dict[str, object]]:
    return [{"x": number} for number in numbers]


def _numbers(dataset: RemoteDataset) -> list[int]:
    return [int(number) for batch in dataset for number in batch["x"]]


def _dataset(where: str | None = None, name: str = _URL, **more: object) -> RemoteDataset:
    wanted = {"batch_size": 8, "epochs": 1, "end": "uneven", **more}
    return RemoteDataset(where, name, **wanted)  # type: ignore[arg-type]


def test_a_loop_goes_on_in_its_snapshot(table: Table) -> None:
    """Another server reads the rest of it after the table has grown; new runs read all."""
    with server_of({"t": _URL}) as server:
        with closing(_dataset(server.address, "t", seed=3)) as whole:
            expected = _numbers(whole)
        with closing(_dataset(server.address, "t", seed=3)) as first:
            batches = iter(first)
            begun = [int(number) for _ in range(4) for number in next(batches)["x"]]
            state = first.state_dict()
    write_rows(table, _rows(range(100, 150)))

    assert list(range(5, 100)) == sorted(expected)
    with server_of({"t": _URL}) as server:
        with closing(_dataset(server.address, "t", seed=3)) as resumed:
            resumed.load_state_dict(state)
            assert expected == begun + _numbers(resumed)
        with closing(_dataset(server.address, "t", seed=3)) as new:
            assert list(range(5, 150)) == sorted(_numbers(new))


def test_an_epoch_goes_on_with_other_ranks(table: Table) -> None:
    """Without deleted rows, each sample once."""
    del table

    assert list(range(5, 100)) == sorted(rescaled(_URL))


@pytest.mark.long
def test_an_epoch_goes_on_after_kills(table: Table) -> None:
    """Of its trainer and its server; by the commands, as a user starts them."""
    del table

    assert list(range(5, 100)) == sorted(rescaled_by_kills({_URL: "x"})[_URL])


@pytest.mark.long
def test_a_private_server_takes_names(table: Table, tmp_path: Path) -> None:
    """It is killed in mid-run, and another one goes on with the same snapshot."""
    with closing(_dataset(seed=3)) as reading:
        batches = iter(reading)
        begun = [int(number) for _ in range(2) for number in next(batches)["x"]]
        end_servers(tmp_path / "run")
        write_rows(table, _rows(range(100, 150)))
        rest = [int(number) for batch in batches for number in batch["x"]]

    assert list(range(5, 100)) == sorted(begun + rest)


def test_a_loop_whose_snapshot_expired_is_told(table: Table) -> None:
    """What is left, and how to keep a snapshot; a name is never a catalog's to a remote caller."""
    with server_of({"t": _URL}) as server:
        with closing(_dataset(server.address, "t")) as begun:
            next(iter(begun))
            state = begun.state_dict()
        with closing(_dataset(server.address, _URL)) as remote, pytest.raises(DatasetNotFoundError):
            next(iter(remote))
    old = table.refresh().current_snapshot()
    assert old is not None
    write_rows(table, _rows(range(100, 150)))
    table.maintenance.expire_snapshots().by_id(old.snapshot_id).commit()

    with server_of({"t": _URL}) as server, closing(_dataset(server.address, "t")) as resumed:
        resumed.load_state_dict(state)
        with pytest.raises(TokenDatasetChangedError, match=r"left are .* RETAIN 30 DAYS"):
            next(iter(resumed))


def test_commands_take_names(table: Table, tmp_path: Path) -> None:
    """`inspect` shows the table, and `convert` makes a dataset of it."""
    del table
    shown = CliRunner().invoke(inspect, [_URL])
    made = CliRunner().invoke(convert, [_URL, str(tmp_path / "d")])

    assert 0 == shown.exit_code == made.exit_code, shown.output + made.output
    assert "95" in shown.output
    with open_dataset(str(tmp_path / "d")) as dataset:
        assert 95 == dataset.sample_count
