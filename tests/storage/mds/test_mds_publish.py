"""An index in MosaicML's format is published once, whatever the store answers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import DatasetExistsError
from headrace.storage import Mode, Version, open_dataset
from headrace.storage.mds import MdsShardEntry, MdsWriter, commit_mds
from headrace.storage.store.local.local_store import LocalStore

_BATCH = pa.record_batch({"id": [1, 2, 3]})


class _Deaf(LocalStore):
    """A store that is asked again by one who has not heard its answer."""

    def write_if_absent(self, name: str, content: bytes) -> None:
        super().write_if_absent(name, content)
        super().write_if_absent(name, content)

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        super().write_if_unchanged(name, content, version)
        super().write_if_unchanged(name, content, version)


def _shards(store: LocalStore, folder: str) -> list[MdsShardEntry]:
    writer = MdsWriter(store, _BATCH.schema, folder=folder)
    writer.append(_BATCH)
    return list(writer.close())


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_lost_answer_is_no_conflict(tmp_path: Path, mode: Mode) -> None:
    """A commit whose last write succeeded unheard finds its index in the store."""
    store = _Deaf(str(tmp_path))

    commit_mds(store, _shards(store, "a"))
    commit_mds(store, _shards(store, "b"), mode=mode)

    with open_dataset(str(tmp_path)) as dataset:
        assert dataset.sample_count == (6 if mode == "append" else 3)


def test_an_index_of_another_is_a_conflict(tmp_path: Path) -> None:
    """An index that came in the meantime stays, and the writer is told."""

    class Late(LocalStore):
        def write_if_absent(self, name: str, content: bytes) -> None:
            commit_mds(LocalStore(self.url), _shards(self, "a"))
            super().write_if_absent(name, content)

    store = Late(str(tmp_path))
    with pytest.raises(DatasetExistsError):
        commit_mds(store, _shards(store, "b"))
