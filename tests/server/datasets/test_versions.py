"""A run goes on with the version of the dataset that it began with."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headrace.client import BatchEvent, BatchReader, Deadlines, Place, ReadOptions
from headrace.errors import NotADatasetError, RebalanceError, TokenDatasetChangedError
from headrace.order import OrderSpec, decode_token
from headrace.server.datasets.versions import Versions
from headrace.storage import (
    ShardWriter,
    collect_garbage,
    commit_dataset,
    open_store,
    plan_gc,
)
from support.datasets import small_table, write_dataset
from support.running import server_of


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


def test_a_run_keeps_its_order_after_an_append(tmp_path: Path) -> None:
    """A token of the old version resumes it, and a stream without one gets the new version."""
    url = str(tmp_path)
    old = write_dataset(url, small_table(50), shard_samples=[50]).fingerprint
    with server_of({"d": url}) as before:
        whole = _read(before.address, "d")
    token = whole[1].header.resume_token
    _append(url, 30)
    datasets = {"d": url, "old": f"{url}#{old}"}

    with server_of(datasets) as after:
        rest = _read(after.address, "d", token)
        pinned = _read(after.address, "old", token)
        new = _read(after.address, "d")

    assert _ids(whole[2:]) == _ids(rest) == _ids(pinned)
    assert 8 == len(new)


def test_a_server_learns_of_a_version_that_is_newer_than_itself(tmp_path: Path) -> None:
    """A token of a replica that was started after an append resumes on one started before."""
    url = str(tmp_path)
    write_dataset(url, small_table(50), shard_samples=[50])
    with server_of({"d": url}) as before:
        _append(url, 30)
        with server_of({"d": url}) as after:
            whole = _read(after.address, "d")

        rest = _read(before.address, "d", whole[1].header.resume_token)

    assert _ids(whole[2:]) == _ids(rest)


def test_a_closed_dataset_opens_no_more_versions() -> None:
    """Closing waits for the one that is being opened, which nobody would close afterwards."""
    is_opening, may_open = threading.Event(), threading.Event()
    opened: list[str] = []

    def open_version(fingerprint: str) -> str:
        is_opening.set()
        assert may_open.wait(60)
        opened.append(fingerprint)
        return fingerprint

    current, early, late = ("0" * 32, "1" * 32, "2" * 32)
    versions = Versions("d", (current, current), open_version=open_version)
    with ThreadPoolExecutor(2) as threads:
        got = threads.submit(versions.get, early)
        assert is_opening.wait(60)
        closed = threads.submit(versions.close)
        may_open.set()

        assert (early,) == closed.result(60)
        assert early == got.result(60)
    with pytest.raises(RebalanceError):
        versions.get(late)
    assert [early] == opened


def test_a_version_that_was_removed_is_refused_by_name(tmp_path: Path) -> None:
    """The error has both fingerprints and says what to do."""
    url = str(tmp_path)
    old = write_dataset(url, small_table(50), shard_samples=[50]).fingerprint
    with server_of({"d": url}) as before:
        token = _read(before.address, "d")[1].header.resume_token
    _append(url, 30)
    store = open_store(url)
    collect_garbage(store, plan_gc(store, keep=1, older_than_s=0, now_s=time.time() + 60))

    with server_of({"d": url}) as after:
        with pytest.raises(TokenDatasetChangedError, match="does not have that version") as caught:
            _read(after.address, "d", token)
        new = decode_token(_read(after.address, "d")[0].header.resume_token).fingerprint

    assert {"token_fingerprint": old, "dataset_fingerprint": new} == caught.value.metadata


def test_a_version_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    """The error lists the versions that there are."""
    old = write_dataset(str(tmp_path), small_table(5), shard_samples=[5]).fingerprint

    with pytest.raises(NotADatasetError, match=old):
        server_of({"d": f"{tmp_path}#{'0' * 32}"})
