"""Claims about the costs that a column says: whole, of one column and one version, or refused.

How it could go wrong: a null or a fraction that becomes a cost; costs of another column or version;
files that `verify` overlooks or takes for damage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import BadArgumentError, ColumnNotFoundError, ManifestCorruptError
from headrace.storage import StoredLengths, index_cost, open_dataset, open_store, read_packing
from headrace.storage.care.verify_packing import verify_packing
from headrace.storage.packing.pointer import packing_name
from support.datasets import write_dataset


def _stored(url: str, column: str) -> list[int]:
    store = open_store(url)
    with open_dataset(url) as dataset:
        pointer = read_packing(store, dataset.fingerprint, cost=column)
        assert pointer is not None
        lengths = StoredLengths(store, pointer).of_samples(np.arange(dataset.sample_count))
    found: list[int] = lengths.tolist()
    return found


def test_costs_of_several_columns_stay_apart(tmp_path: Path) -> None:
    """Also after an append, of which only the new samples are read; and again they are known."""
    url = str(tmp_path / "d")
    first = pa.table({"a": pa.array([3, 0, 70_000], pa.uint32()), "ä/b": [1, 2, 3]})
    write_dataset(url, first, shard_samples=[3])
    for column in first.column_names:
        index_cost(url, column)
    write_dataset(url, first.slice(1), shard_samples=[2], mode="append")
    pointers = [index_cost(url, column) for column in first.column_names]

    assert [3, 0, 70_000, 0, 70_000] == _stored(url, "a")
    assert [1, 2, 3, 2, 3] == _stored(url, "ä/b")
    assert pointers == [index_cost(url, column) for column in first.column_names]
    with open_dataset(url) as dataset:
        assert [] == list(verify_packing(open_store(url), dataset))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1, None]), r"sample 1 has None in 'c'"),
        (pa.array([-1, 2]), r"sample 0 has -1 in 'c'"),
        (pa.array([1, 1 << 32]), r"sample 1 has 4294967296 in 'c'.*in \[0, 4294967296\)"),
        (pa.array([1, (1 << 64) - 1], pa.uint64()), r"sample 1 has 18446744073709551615"),
        (pa.array([1.0, 2.0]), r"column 'c' is double; expected whole numbers"),
    ],
)
def test_what_is_no_cost_is_refused(values: pa.Array[Any], message: str, tmp_path: Path) -> None:
    """With the sample, and nothing is stored."""
    url = str(tmp_path / "d")
    write_dataset(url, pa.table({"c": values}), shard_samples=[2])
    with pytest.raises(BadArgumentError, match=message):
        index_cost(url, "c")
    with pytest.raises(ColumnNotFoundError):
        index_cost(url, "d")
    with open_dataset(url) as dataset:
        assert read_packing(open_store(url), dataset.fingerprint, cost="c") is None


def test_costs_of_another_column_are_damage(tmp_path: Path) -> None:
    """Under the name of this one."""
    url = str(tmp_path / "d")
    write_dataset(url, pa.table({"a": [1, 2], "b": [3, 4]}), shard_samples=[2])
    index_cost(url, "a")
    with open_dataset(url) as dataset:
        names = [packing_name(dataset.fingerprint, column) for column in ("a", "b")]
        store = open_store(url)
        store.write(names[1], store.read(names[0]))
        with pytest.raises(ManifestCorruptError, match=r"column 'a' found, 'b' expected"):
            read_packing(store, dataset.fingerprint, cost="b")
        assert [names[1]] == [fault.file for fault in verify_packing(store, dataset)]
