"""A run goes on with the version of the dataset that it began with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.client import BatchEvent, BatchReader, Deadlines, Place, ReadOptions
from headrace.errors import NotADatasetError, TokenDatasetChangedError
from headrace.order import OrderSpec, decode_token
from headrace.server import ServerConfig, start_server
from headrace.storage import ShardWriter, commit_dataset, open_store
from support.datasets import small_table, write_dataset


def _append(url: str, sample_count: int) -> None:
    table = small_table(sample_count)
    store = open_store(url)
    writer = ShardWriter(store, "later.arrow", schema=table.schema)
    for batch in table.to_batches():
        writer.append(batch)
    commit_dataset(store, table.schema, [writer.close()], mode="append")


def _read(address: str, name: str, token: bytes | None = None) -> list[BatchEvent]:
    at = decode_token(token) if token else None
    reader = BatchReader(
        [address],
        ReadOptions(name, OrderSpec(unit=10), 10, with_ids=True, end_epoch=1),
        place=Place(at.epoch, at.position, token) if at else Place(),
        deadlines=Deadlines(connect_s=10, silence_s=10, give_up_s=10),
        allocate=lambda size: np.empty(size, dtype=np.uint8),
    )
    return [event for event in reader.events() if isinstance(event, BatchEvent)]


def _ids(events: list[BatchEvent]) -> list[object]:
    return [event.columns["headrace.sample_id"].values.tolist() for event in events]


def test_an_old_version_is_served_beside_the_new_one(tmp_path: Path) -> None:
    """After an append the old token is refused by the new version and resumes on the old one."""
    url = str(tmp_path)
    old = write_dataset(url, small_table(50), shard_samples=[50]).fingerprint
    with start_server(ServerConfig(datasets={"d": url}, listen="127.0.0.1:0")) as before:
        whole = _read(before.address, "d")
    token = whole[1].header.resume_token
    _append(url, 30)
    datasets = {"d": url, "old": f"{url}#{old}"}

    with start_server(ServerConfig(datasets=datasets, listen="127.0.0.1:0")) as after:
        rest = _read(after.address, "old", token)
        with pytest.raises(TokenDatasetChangedError, match="URL#FINGERPRINT"):
            _read(after.address, "d", token)

    assert _ids(whole[2:]) == _ids(rest)


def test_a_version_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    """The error lists the versions that there are."""
    old = write_dataset(str(tmp_path), small_table(5), shard_samples=[5]).fingerprint

    with pytest.raises(NotADatasetError, match=old):
        start_server(ServerConfig(datasets={"d": f"{tmp_path}#{'0' * 32}"}, listen="127.0.0.1:0"))
