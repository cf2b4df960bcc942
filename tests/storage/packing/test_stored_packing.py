"""Claims about what is stored for packing: right in any version, never read twice, and collected.

How it could be wrong: lengths of other documents after an append; groups that pass their bounds;
a ``packing.json`` that leads out of its folder; files that stay when their version is removed.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.errors import ManifestCorruptError, NotADatasetError
from headrace.storage import (
    PackingPointer,
    RowOptions,
    ShardWriter,
    StoredLengths,
    collect_garbage,
    commit_dataset,
    index_packing,
    open_dataset,
    open_store,
    plan_gc,
    read_packing,
    read_row_counts,
)
from headrace.storage.packing.groups import Group, grouped
from headrace.storage.packing.pointer import decode_packing, encode_packing
from support.command import run

_DAY_S = 24 * 3600.0


def _count_rows(lengths: NDArray[np.int64], options: RowOptions) -> int:
    return int(lengths.sum()) + options.length


def _write(url: str, lengths: list[int], stem: str, mode: Literal["error", "append"]) -> None:
    values = [[1] * length for length in lengths]
    table = pa.table({"tokens": pa.array(values, pa.list_(pa.int32()))})
    store = open_store(url)
    writer = ShardWriter(store, f"{stem}.arrow", schema=table.schema, block_bytes=1024)
    for batch in table.to_batches():
        writer.append(batch)
    commit_dataset(store, table.schema, [writer.close()], mode=mode)


def _stored(url: str, pointer: PackingPointer) -> list[int]:
    stored = StoredLengths(open_store(url), pointer)
    return [
        length for group in range(len(stored.groups)) for length in stored.of_group(group).tolist()
    ]


def test_lengths_follow_appends_and_serve_every_length_of_rows(tmp_path: Path) -> None:
    """After an append the lengths are those of all documents, and known options keep their rows."""
    url, lengths = str(tmp_path / "d"), np.random.default_rng(1).integers(0, 90, 700).tolist()
    lengths[5] = 70_000  # takes four bytes
    _write(url, lengths[:500], "a", "error")
    first = index_packing(url, RowOptions(8), count_rows=_count_rows)
    index_packing(url, RowOptions(16, eos=3), count_rows=_count_rows)
    _write(url, lengths[500:], "b", "append")
    pointer = index_packing(url, RowOptions(8), count_rows=_count_rows)

    assert first.sample_count == 500
    assert pointer.sample_count == 700
    assert pointer.empty_count == lengths.count(0)
    assert _stored(url, first) == lengths[:500]
    assert _stored(url, pointer) == lengths
    assert [table.options for table in pointer.rows] == [RowOptions(8), RowOptions(16, eos=3)]
    stored = StoredLengths(open_store(url), pointer)
    for table in pointer.rows:
        counts = read_row_counts(open_store(url), table, group_count=len(stored.groups))
        assert int(counts.sum()) == table.row_count
    ids = np.array([699, 5, 0, 5])
    assert stored.of_samples(ids).tolist() == [lengths[each] for each in ids]


def test_groups_keep_their_bounds() -> None:
    """At most 16,384 documents and 64 MiB, but for one that is larger by itself."""
    random = np.random.default_rng(2)
    raw = random.choice([1, 1000, 9000, 70 << 20], 60_000, p=[0.5, 0.3, 0.1999, 0.0001])
    lengths = np.arange(60_000)
    parts = [(lengths[at : at + 700], raw[at : at + 700]) for at in range(0, 60_000, 700)]

    groups: list[Group] = list(grouped(parts))

    assert np.concatenate([group.lengths for group in groups]).tolist() == lengths.tolist()
    for group in groups:
        assert 1 <= len(group.lengths) <= 16_384
        assert group.raw_bytes <= 64 << 20 or len(group.lengths) == 1


def test_what_is_stored_goes_with_its_version(tmp_path: Path) -> None:
    """A collection removes it for versions that go, and leaves it for those that stay."""
    url = str(tmp_path / "d")
    _write(url, [1, 2, 3], "a", "error")
    first = index_packing(url, RowOptions(8), count_rows=_count_rows)
    _write(url, [4], "b", "append")
    second = index_packing(url, RowOptions(8), count_rows=_count_rows)
    store = open_store(url)

    collect_garbage(store, plan_gc(store, now_s=time.time() + 2 * _DAY_S))

    assert read_packing(store, first.dataset) is None
    assert _stored(url, second) == [1, 2, 3, 4]


def _pointer() -> dict[str, Any]:
    name = f"packing/{'a' * 32}/x"
    file = {"name": name, "stored_bytes": 1, "digest": "b" * 32}
    row = {"length": 8, "cut": 0, "bos": None, "eos": 2, "fill": 0, "row_count": 3, "counts": file}
    return {
        "format": "headrace-packing",
        "version": 2,
        "dataset": "a" * 32,
        "column": "tokens",
        "alike": ["mask"],
        "sample_count": 1,
        "empty_count": 0,
        "lengths": file,
        "groups": file,
        "rows": [row],
    }


def _sealed(content: Any) -> Any:
    text = json.dumps(content, separators=(",", ":")).encode()
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    return {**content, "digest": digest} if isinstance(content, dict) else content


def test_packing_json_is_what_docs_format_says() -> None:
    """What is decoded and encoded again is the same."""
    content = (json.dumps(_sealed(_pointer()), indent=2) + "\n").encode()

    pointer = decode_packing(content, fingerprint="a" * 32, place="here")

    assert encode_packing(pointer) == content


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), None),
        ((), []),
        (("version",), 1),
        (("digest",), "c" * 32),
        (("dataset",), "c" * 32),
        (("lengths", "name"), "../../etc/passwd"),
        (("lengths", "name"), f"packing/{'a' * 32}/../../x"),
        (("groups", "name"), f"packing/{'c' * 32}/x"),
        (("groups", "digest"), "0"),
        (("lengths", "stored_bytes"), -1),
        (("lengths", "stored_bytes"), 1 << 60),
        (("sample_count",), 1.5),
        (("sample_count",), True),
        (("alike",), "mask"),
        (("column",), 5),
        (("rows",), {}),
        (("rows", 0, "length"), 0),
        (("rows", 0, "length"), 1 << 40),
        (("rows", 0, "cut"), 9),
        (("rows", 0, "eos"), -1),
        (("rows", 0, "bos"), 1 << 31),
        (("rows", 0, "counts"), None),
    ],
)
def test_hostile_packing_json_is_refused(path: tuple[str | int, ...], value: object) -> None:
    """With the place, and what to do."""
    content: Any = _pointer()
    if path:
        inner = content
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
    else:
        content = value

    with pytest.raises(ManifestCorruptError, match=r"here: .*headrace index --pack-length"):
        decode_packing(json.dumps(_sealed(content)).encode(), fingerprint="a" * 32, place="here")


def test_the_command_stores_lengths_and_says_what_to_read(tmp_path: Path) -> None:
    """In one line, or as JSON; it says what is missing."""
    url = str(tmp_path / "d")
    _write(url, [3, 0, 20], "a", "error")

    done = run("index", url, "--pack-length", "8")
    as_json = json.loads(run("index", url, "--pack-length", "8", "--eos", "2", "--json").stdout)
    nothing = run("index", url)

    assert "3 documents, 1 of them empty make" in done.stdout
    assert "read NAME:8" in done.stdout
    assert as_json["rows"][0]["options"]["eos"] == 2
    assert nothing.returncode == 2
    assert "--pack-length L" in nothing.stderr


def test_rows_are_no_dataset_that_a_url_names(tmp_path: Path) -> None:
    """They differ from epoch to epoch, so commands that ask no server read documents alone."""
    url = str(tmp_path / "d")
    _write(url, [3, 5, 8], "a", "error")

    with pytest.raises(NotADatasetError) as caught:
        open_dataset(f"{url}:64")

    assert "may name packed rows" in caught.value.message
    assert f"give {url}" in caught.value.message
