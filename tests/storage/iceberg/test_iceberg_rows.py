"""Iceberg tables: the rows that a snapshot has, and no others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    ManifestCorruptError,
    NotADatasetError,
    ObjectNotFoundError,
    ShardCorruptError,
    UnsupportedColumnError,
)
from headrace.storage import SourceOptions, open_dataset, store_index
from storage.iceberg.iceberg_tables import delete_rows, new_catalog, write_rows
from storage.iceberg.random_tables import random_table
from storage.random_values import shown

_URL = "iceberg://lake/n.t"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog in SQLite, which pyiceberg's configuration names."""
    return new_catalog(tmp_path, monkeypatch)


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """A table of a number and a text."""
    fields = (
        NestedField(1, "x", IntegerType(), required=False),
        NestedField(2, "text", StringType(), required=False),
    )
    return catalog.create_table("n.t", Schema(*fields))


def _rows(numbers: range) -> list[dict[str, object]]:
    return [{"x": number, "text": f"t{number}"} for number in numbers]


def _read(url: str = _URL, fingerprint: str | None = None) -> list[dict[str, object]]:
    with open_dataset(url, fingerprint=fingerprint) as dataset:
        return [
            row
            for block in range(dataset.block_count)
            for row in dataset.read_block(block).to_pylist()
        ]


def _numbers(url: str = _URL, fingerprint: str | None = None) -> list[object]:
    return sorted(row["x"] for row in _read(url, fingerprint))  # type: ignore[type-var]


def _fingerprint(url: str = _URL) -> str:
    with open_dataset(url) as dataset:
        return dataset.fingerprint


def _check_random(catalog: Catalog, seed: int) -> None:
    made = random_table(catalog, Random(seed), f"t{seed}")
    expected = made.rows()
    assert expected == Counter(shown(row) for row in _read(f"iceberg://lake/n.t{seed}"))


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_tables_have_their_rows(catalog: Catalog, first: int) -> None:
    """Types, partitions, deletes, columns added, renamed, dropped, promoted: null for null."""
    for seed in range(first, first + 10):
        _check_random(catalog, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(50, 5_000, 450))
def test_thousands_of_random_tables_have_their_rows(catalog: Catalog, first: int) -> None:
    """The same, 5,000 times."""
    for seed in range(first, first + 450):
        _check_random(catalog, seed)


@pytest.mark.parametrize("kind", ["positions", "vector"])
def test_deleted_rows_are_no_samples(table: Table, kind: str) -> None:
    """In one file of two, across row groups; what is deleted again is deleted once."""
    first, second = write_rows(table, _rows(range(10))), write_rows(table, _rows(range(10, 20)))
    deleted = {first.file_path: [0, 3, 4, 9], second.file_path: [1]}
    delete_rows(table, deleted, of=first, kind=kind)

    assert [1, 2, 5, 6, 7, 8, 10, *range(12, 20)] == _numbers()
    delete_rows(table, {first.file_path: [0, 1, 3, 4, 9]}, of=first, kind=kind)
    assert [2, 5, 6, 7, 8, 10, *range(12, 20)] == _numbers()
    theirs = table.refresh().scan().to_arrow().column("x").to_pylist()
    assert Counter(theirs) == Counter(_numbers())  # a second opinion


def test_a_file_that_comes_after_deletes_keeps_its_rows(table: Table) -> None:
    """Deletes concern what was there before; a rewritten file of the same rows is whole."""
    first = write_rows(table, _rows(range(5)))
    delete_rows(table, {first.file_path: [0]}, of=first, kind="positions")
    write_rows(table, _rows(range(5)))

    assert sorted([*range(1, 5), *range(5)]) == _numbers()


def test_equality_deletes_are_refused_by_name(table: Table) -> None:
    """A row that should be gone is never served."""
    first = write_rows(table, _rows(range(5)))
    delete_rows(table, {first.file_path: [0]}, of=first, kind="equality")

    with pytest.raises(ConfigurationError, match=r"equality deletes.*rewrite_data_files"):
        open_dataset(_URL)


def test_names_may_be_exchanged(table: Table) -> None:
    """Columns are found by their ids, and a run from before goes on with the old names."""
    table.update_schema().add_column("y", IntegerType()).commit()
    write_rows(table, [{"x": 1, "y": 2, "text": None}])
    before = _fingerprint()
    for old, new in (("x", "z"), ("y", "x"), ("z", "y")):
        table.update_schema().rename_column(old, new).commit()

    assert [{"y": 1, "x": 2, "text": None}] == _read()
    assert before != _fingerprint()
    assert [{"x": 1, "y": 2, "text": None}] == _read(fingerprint=before)


def test_a_struct_may_lose_all_its_fields(catalog: Catalog) -> None:
    """Its new fields are null, and it is null where it was."""
    inner = StructType(NestedField(2, "u", LongType(), required=False))
    made = catalog.create_table("n.t", Schema(NestedField(1, "s", inner, required=False)))
    write_rows(made, [{"s": {"u": 1}}, {"s": None}])
    made.update_schema().add_column(("s", "w"), StringType()).commit()
    made.update_schema().delete_column(("s", "u")).commit()

    assert [{"s": {"w": None}}, {"s": None}] == _read()


def test_partitions_may_be_absent_from_files(table: Table) -> None:
    """Files of Hive have no column for them: the value is in the manifest."""
    with table.update_spec() as update:
        update.add_field("text", IdentityTransform(), "text")
    write_rows(table, [{"x": 1, "text": "a"}, {"x": 2, "text": "a"}], without="text")
    with table.update_spec() as update:
        update.remove_field("text")
    write_rows(table, [{"x": 3, "text": "b"}, {"x": 4, "text": None}])

    found = sorted(_read(), key=lambda row: str(row["x"]))
    assert ["a", "a", "b", None] == [row["text"] for row in found]


def test_files_without_ids_need_a_name_mapping(table: Table, tmp_path: Path) -> None:
    """What `add_files` takes over is read by the names that the table keeps."""
    path = tmp_path / "n/t/data/old.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": ["a", "b"], "x": pa.array([1, 2], pa.int32())}), path)
    table.add_files([f"file://{path}"])
    table.update_schema().rename_column("x", "number").commit()
    assert [{"number": 1, "text": "a"}, {"number": 2, "text": "b"}] == _read()

    with table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(UnsupportedColumnError, match=r"no field ids.*name mapping"):
        open_dataset(_URL)


def test_snapshots_branches_and_tags_have_names(table: Table) -> None:
    """Each is its own version, and its fingerprint alone opens it again."""
    write_rows(table, _rows(range(3)))
    old = table.refresh().current_snapshot()
    assert old is not None
    table.manage_snapshots().create_tag(old.snapshot_id, "run").commit()
    write_rows(table, _rows(range(3, 6)))

    assert list(range(3)) == _numbers(f"{_URL}@{old.snapshot_id}") == _numbers(f"{_URL}@run")
    assert list(range(6)) == _numbers() == _numbers(f"{_URL}@main")
    pinned = _fingerprint(f"{_URL}@run")
    assert f"{old.snapshot_id:016x}" == pinned[:16]
    assert list(range(3)) == _numbers(fingerprint=pinned)


def test_what_expired_is_named_with_what_is_left(table: Table) -> None:
    """At a resume and in mid-run, with the retention that a run needs."""
    write_rows(table, _rows(range(3)))
    pinned, old = _fingerprint(), table.refresh().current_snapshot()
    assert old is not None
    write_rows(table, _rows(range(3, 6)))
    now = table.refresh().current_snapshot()
    assert now is not None
    with open_dataset(_URL, fingerprint=pinned) as dataset:
        table.maintenance.expire_snapshots().by_id(old.snapshot_id).commit()
        for file in Path(table.location().removeprefix("file://")).glob("data/*.parquet"):
            file.unlink()
        with pytest.raises(ObjectNotFoundError, match=f"left are {now.snapshot_id}.*max-snapshot"):
            dataset.read_block(0)

    with pytest.raises(NotADatasetError, match=f"left are {now.snapshot_id}.*CREATE TAG"):
        open_dataset(_URL, fingerprint=pinned)


def test_a_table_of_the_same_name_is_another(catalog: Catalog, table: Table) -> None:
    """A token of the old one is not continued with the new one."""
    write_rows(table, _rows(range(3)))
    pinned = _fingerprint()
    schema = table.schema()
    catalog.drop_table("n.t")
    write_rows(catalog.create_table("n.t", schema), _rows(range(3)))

    with pytest.raises(NotADatasetError, match="of another table"):
        open_dataset(_URL, fingerprint=pinned)


@pytest.mark.parametrize("what", ["data", "deletes"])
def test_files_elsewhere_are_refused(table: Table, tmp_path: Path, what: str) -> None:
    """Whoever writes a table must not choose what its readers read."""
    first = write_rows(table, _rows(range(3)))
    outside = tmp_path / "n/other/secret.parquet"
    outside.parent.mkdir(parents=True)
    outside.write_bytes(Path(first.file_path.removeprefix("file://")).read_bytes())
    place = f"{table.location()}/../other/secret.parquet"
    if what == "data":
        table.add_files([place], check_duplicate_files=False) if False else _add(
            table, first, place
        )
    else:
        delete_rows(table, {place: [0]}, of=first, kind="vector")

    with pytest.raises(ConfigurationError, match="not below"):
        open_dataset(_URL)
    beside = SourceOptions(table_prefixes=(str(tmp_path / "n/oth"), "s3://bucket"))
    with pytest.raises(ConfigurationError, match="not below"):
        open_dataset(_URL, source_options=beside)


def test_files_below_a_prefix_of_the_operator_are_read(table: Table, tmp_path: Path) -> None:
    """Data and deletes of a table whose files lie elsewhere; by a stored index, too."""
    first = write_rows(table, _rows(range(3)))
    outside = tmp_path / "n/other/data.parquet"
    outside.parent.mkdir(parents=True)
    outside.write_bytes(Path(first.file_path.removeprefix("file://")).read_bytes())
    _add(table, first, f"file://{outside}")
    delete_rows(table, {f"file://{outside}": [0]}, of=first, kind="vector")
    options = SourceOptions(table_prefixes=(f"file://{outside.parent}/",))
    index = str(tmp_path / "index")
    store_index(_URL, index, source_options=options)

    for url in (_URL, f"{index} from {_URL}"):
        with open_dataset(url, source_options=options) as dataset:
            blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
        assert {0: 1, 1: 2, 2: 2} == Counter(n for each in blocks for n in each["x"].to_pylist())
    outside.write_bytes(b"another")
    with pytest.raises(ShardCorruptError, match="has changed"):
        open_dataset(_URL, source_options=options)


def _add(table: Table, like: DataFile, place: str) -> None:
    like._data[1] = place
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(like)


@pytest.mark.parametrize("bad", ["checksum", "length", "cut", "magic"])
def test_a_damaged_vector_is_refused(table: Table, bad: str) -> None:
    """Each byte is checked: no row comes back because its deletion was misread."""
    first = write_rows(table, _rows(range(5)))
    file = delete_rows(table, {first.file_path: [1, 2]}, of=first, kind="vector")
    path = Path(file.file_path.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    place = {"checksum": 40, "length": 6, "cut": -1, "magic": 0}[bad]
    content[place] ^= 1
    path.write_bytes(content[:-1] if bad == "cut" else content)

    with pytest.raises(ManifestCorruptError, match=r"deletes in .*puffin"):
        open_dataset(_URL)


def test_a_replaced_data_file_is_noticed(table: Table) -> None:
    """Another size at once, another content by the fingerprint."""
    first = write_rows(table, _rows(range(5)))
    path = Path(first.file_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes() + b"x")

    with pytest.raises(ShardCorruptError, match="has changed"):
        open_dataset(_URL)


def test_an_index_opens_the_same_dataset(table: Table, tmp_path: Path) -> None:
    """Without reading footers; once its snapshot has expired, it says so."""
    write_rows(table, _rows(range(5)))
    pointer = store_index(_URL, str(tmp_path / "index"))
    assert _fingerprint() == pointer.fingerprint
    both = f"{tmp_path}/index from {_URL}"
    write_rows(table, _rows(range(5, 9)))
    assert list(range(5)) == _numbers(both)

    snapshot = table.refresh().snapshots()[0]
    table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    with pytest.raises(NotADatasetError, match="left are"):
        open_dataset(both)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("iceberg://lake/n.none", "the catalog 'lake' has no table n.none"),
        ("iceberg://none/n.t", "no catalog 'none'; it has lake. Set PYICEBERG_CATALOG__NONE__URI"),
        ("iceberg://lake/n.t@x", "no branch or tag 'x'; it has none"),
        ("iceberg://lake/n.t", "has no snapshot yet"),
        ("iceberg://lake/t", "names no table"),
        ("iceberg://lake/n.t#" + "0" * 31, "names no table|no branch|no table"),
    ],
)
def test_what_is_not_there_is_named(table: Table, url: str, said: str) -> None:
    """With what there is, and where it must be set."""
    del table
    with pytest.raises(HeadraceError, match=said):
        open_dataset(url)


def test_nothing_is_written_to_a_name(table: Table) -> None:
    """A conversion into a table's name would be lost."""
    write_rows(table, _rows(range(5)))
    with pytest.raises(
        HeadraceError, match=r"cannot be written to iceberg://.*which names a table"
    ):
        store_index(_URL, _URL)
