"""A repair replaces what it has looked at, and nothing that is newer."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import CommitConflictError, ManifestCorruptError
from headrace.storage import open_dataset, repair_manifest
from headrace.storage.dataset.pointer import INDEX_POINTER_VERSION
from headrace.storage.store.local.local_store import LocalStore
from headrace.storage.store.store import Version
from support.shards import numbered_batch, write_shards_of

_POINTER = "headrace.json"
_NEWER = INDEX_POINTER_VERSION + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of two versions."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 50)], stem="a")
    write_shards_of(str(tmp_path), [numbered_batch(50, 90)], stem="b", mode="append")
    return tmp_path


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _refused(folder: Path) -> None:
    before = _files(folder)
    with pytest.raises(ManifestCorruptError, match="a newer headrace may be able to read it"):
        repair_manifest(LocalStore(str(folder)))
    with pytest.raises(ManifestCorruptError, match="a newer headrace"):
        repair_manifest(LocalStore(str(folder)), patterns=["*"])
    assert before == _files(folder)


@pytest.mark.parametrize(
    "change", [{"version": _NEWER}, {"version": _NEWER, "source": 7}, {"source": "new"}]
)
def test_a_pointer_of_a_newer_headrace_stays(folder: Path, change: dict[str, object]) -> None:
    """It was taken for damage, and the dataset went back to what an old program understood."""
    pointer = json.loads((folder / _POINTER).read_text())
    (folder / _POINTER).write_text(json.dumps(pointer | change))

    _refused(folder)


@pytest.mark.parametrize("is_pointer_lost", [True, False])
def test_a_table_of_a_newer_headrace_stays(folder: Path, *, is_pointer_lost: bool) -> None:
    """Its version is not left out for an older one, also where ``headrace.json`` is gone."""
    pointer = json.loads((folder / _POINTER).read_text())
    table = folder / pointer["versions"][-1]["shards"]["name"]
    with pa.ipc.open_file(table) as reader:
        batch = reader.get_batch(0)
    metadata = {**(batch.schema.metadata or {}), b"headrace.version": b"3"}
    newer = batch.replace_schema_metadata(metadata)
    with pa.OSFile(str(table), "wb") as sink, pa.ipc.new_file(sink, newer.schema) as writer:
        writer.write_batch(newer)
    pointer["versions"][-1]["shards"]["stored_bytes"] = table.stat().st_size
    (folder / _POINTER).write_text(json.dumps(pointer))
    if is_pointer_lost:
        (folder / _POINTER).unlink()

    _refused(folder)


class _CommittedMeanwhile(LocalStore):
    """A folder whose pointer is restored by another hand as soon as it was read once."""

    restored: bytes | None = None

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        found = super().read_versioned(name)
        if name == _POINTER and self.restored is not None:
            content, self.restored = self.restored, None
            super().write(name, content)
        return found


def test_what_comes_after_the_damage_was_seen_wins(folder: Path) -> None:
    """The repair replaces the damaged pointer that it read, not the good one that came then."""
    good = (folder / _POINTER).read_bytes()
    (folder / _POINTER).write_bytes(good[:-9])
    (folder / "shards" / "b-00000.arrow").unlink()
    store = _CommittedMeanwhile(str(folder))
    store.restored = good

    with pytest.raises(CommitConflictError):
        repair_manifest(store)

    assert good == (folder / _POINTER).read_bytes()
    with open_dataset(str(folder)) as dataset:
        assert 90 == dataset.sample_count
