"""Tests of a dataset without a sample: it is stored, looked at, served and read as any other."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client import BatchLoader, MixtureEntry, NumpyDataset, RemoteDataset, Selection
from headrace.client import Mixture as ClientMixture
from headrace.errors import BadArgumentError
from headrace.server import Server
from headrace.storage import ShardWriter, commit_dataset, list_versions, open_dataset, open_store
from support.command import run
from support.datasets import small_table, write_dataset
from support.running import server_of

_FIELDS: list[Any] = [pa.field("x", pa.int64(), nullable=False), pa.field("text", pa.string())]
_SCHEMA = pa.schema(_FIELDS)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A dataset of two columns and no sample."""
    found = str(tmp_path / "empty")
    assert 0 == commit_dataset(open_store(found), _SCHEMA, []).sample_count
    return found


@pytest.fixture
def server(url: str, tmp_path: Path) -> Iterator[Server]:
    """A server of it, and of one with samples."""
    full = str(tmp_path / "full")
    write_dataset(full, small_table(20), shard_samples=[20])
    with server_of({"empty": url, "full": full}) as running:
        yield running


@pytest.mark.parametrize("end", ["drop_last", "uneven", "pad"])
@pytest.mark.parametrize("epochs", [2, None])
def test_a_loop_over_it_ends_at_once_and_says_why(
    server: Server, caplog: pytest.LogCaptureFixture, epochs: int | None, end: str
) -> None:
    """Each epoch has no batch, whatever becomes of the last ones; a state goes on there."""
    dataset = RemoteDataset(
        server.address,
        "empty",
        batch_size=4,
        epochs=epochs,
        end=end,  # type: ignore[arg-type] # one of the three
    )
    with caplog.at_level(logging.WARNING):
        assert (0, [], []) == (len(dataset), list(dataset), list(dataset))
    assert "'empty' has no samples: loops over it end at once" in caplog.messages
    again = RemoteDataset(server.address, "empty", batch_size=4, end=end)  # type: ignore[arg-type] # as above
    again.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
    assert [] == list(again)


def test_all_ways_to_read_it_end(server: Server, url: str) -> None:
    """Arrays, worker processes and a private server."""
    with NumpyDataset(server.address, "empty", batch_size=4, epochs=3) as arrays:
        assert [] == list(arrays)
    dataset = RemoteDataset(server.address, "empty", batch_size=4, epochs=1)
    assert [] == list(BatchLoader(dataset, num_workers=1))
    with RemoteDataset(None, url, batch_size=4, epochs=1) as private:
        assert [] == list(private)


def test_what_needs_samples_is_refused(server: Server) -> None:
    """A mixture that draws from it, and a filter of it."""
    mixture = ClientMixture((MixtureEntry("full"), MixtureEntry("empty", choose=5)))
    with pytest.raises(BadArgumentError, match="empty has no samples"):
        list(RemoteDataset(server.address, mixture, batch_size=4, epochs=1))
    with pytest.raises(BadArgumentError, match="keeps none of the 0 samples"):
        list(RemoteDataset(server.address, Selection("empty", where="x < 3"), batch_size=4))


def test_samples_come_to_it_later(url: str) -> None:
    """Appended ones may hold nulls, of which nothing was known; versions count both."""
    table = pa.table({"x": [1, 2], "text": ["a", None]}, schema=_SCHEMA)
    store = open_store(url)
    writer = ShardWriter(store, "part-0.arrow", schema=_SCHEMA)
    for batch in table.to_batches():
        writer.append(batch)
    commit_dataset(store, _SCHEMA, [writer.close()], mode="append")

    with open_dataset(url) as dataset:
        assert dataset.schema.field("text").nullable
        assert table.to_pylist() == dataset.read_block(0).to_pylist()
    assert [0, 2] == [version.sample_count for version in list_versions(url)]


def test_commands_show_it(url: str) -> None:
    """It is described, and an order of it says that there is none."""
    shown = run("inspect", url)
    assert (0, True) == (shown.returncode, "samples      0" in shown.stdout), shown.stderr
    ordered = run("order", url, "--global-batch-size", "4")
    assert (2, True) == (ordered.returncode, "an epoch of 0 samples" in ordered.stderr)
