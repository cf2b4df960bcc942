"""A stored label keeps its meaning: in appends, repairs, servers, mixtures and other formats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import Mixture, MixtureEntry, NumpyDataset, RemoteDataset
from headrace.client.batch.classes import Classes
from headrace.converter import WriteOptions, convert_files, write_shards
from headrace.errors import BadArgumentError, ManifestCorruptError, UnsupportedColumnError
from headrace.server import ServerConfig, start_server
from headrace.server.datasets.class_messages import MAX_SENT_BYTES, class_messages
from headrace.storage import (
    CLASSES_KEY,
    MAX_CLASSES_BYTES,
    ShardWriter,
    classes_of,
    commit_dataset,
    merged_classes,
    open_dataset,
    open_store,
    repair_manifest,
    with_classes,
)
from headrace.v1 import shard_service_pb2 as pb
from support.command import run
from support.datasets import write_dataset
from support.images import write_images

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def _table(labels: Sequence[int], names: Sequence[str] | None) -> pa.Table:
    label = pa.field("label", pa.int64())
    schema = pa.schema([label if names is None else with_classes(label, names)])
    return pa.table({"label": labels}, schema=schema)


def _write(url: Path, labels: Sequence[int], names: Sequence[str] | None) -> None:
    write_dataset(str(url), _table(labels, names), shard_samples=[len(labels)])


def _append(url: Path, labels: Sequence[int], names: Sequence[str] | None, shard: str) -> None:
    store, table = open_store(str(url)), _table(labels, names)
    with ShardWriter(store, f"{shard}.arrow", schema=table.schema) as writer:
        for batch in table.to_batches():
            writer.append(batch)
        commit_dataset(store, table.schema, [writer.close()], mode="append")


def _classes(url: Path | str, fingerprint: str | None = None) -> tuple[str, ...] | None:
    with open_dataset(str(url), fingerprint=fingerprint) as dataset:
        return classes_of(dataset.schema.field("label"))


def _fingerprint(url: Path) -> str:
    with open_dataset(str(url)) as dataset:
        return dataset.fingerprint


@given(st.lists(_NAMES, min_size=1, unique=True), st.data())
def test_names_come_back_as_they_were(names: list[str], draw: st.DataObject) -> None:
    """Any text, in any order; and an append keeps every number that was given."""
    field = with_classes(pa.field("label", pa.int32()), names)
    cut = draw.draw(st.integers(0, len(names)))

    assert tuple(names) == classes_of(field)
    assert tuple(names) == merged_classes(names[:cut], names, column="label", place="x")
    assert tuple(names) == merged_classes(names, names[:cut], column="label", place="x")


@pytest.mark.parametrize(
    ("kind", "names", "found"),
    [
        (pa.int64(), [], "no names"),
        (pa.int64(), ["a", "a"], "'a' occurs twice"),
        (pa.int64(), ["a", ""], "'' is among them"),
        (pa.int64(), ["caf\udce9"], r"'caf\\udce9' is among them"),
        (pa.string(), ["a"], "names for string"),
        (pa.float32(), ["a"], "names for float"),
        (pa.int64(), ["x" * MAX_CLASSES_BYTES], "above the limit"),
    ],
)
def test_what_cannot_be_classes_is_refused(kind: pa.DataType, names: list[str], found: str) -> None:
    """With what is wrong with the names."""
    with pytest.raises(BadArgumentError, match=found):
        with_classes(pa.field("label", kind), names)


@pytest.mark.parametrize("text", [b"{", b"7", b'"ab"', b'["a","a"]', b"[1]", b"[]", b"\xff"])
def test_a_manifest_whose_classes_are_none_is_damaged(tmp_path: Path, text: bytes) -> None:
    """It is refused where it is opened, not where a loop looks at a label."""
    label = pa.field("label", pa.int64(), metadata={CLASSES_KEY: b'["a"]'})
    table = pa.table({"label": [0]}, schema=pa.schema([label]))
    manifest = write_dataset(str(tmp_path / "x"), table, shard_samples=[1])
    broken = pa.schema([label.with_metadata({CLASSES_KEY: text})])
    object.__setattr__(manifest, "schema", broken)
    from headrace.storage.dataset.manifest import (  # noqa: PLC0415
        decode_shard_table,
        encode_shard_table,
    )

    with pytest.raises(ManifestCorruptError):
        decode_shard_table(
            encode_shard_table(manifest), fingerprint=manifest.fingerprint, place="x"
        )


def test_other_names_are_another_version(tmp_path: Path) -> None:
    """The same numbers with other meanings must not go on from each other's tokens."""
    found = set()
    for number, names in enumerate((None, ["cat", "dog"], ["dog", "cat"])):
        _write(tmp_path / str(number), [0, 1], names)
        found.add(_fingerprint(tmp_path / str(number)))

    assert 3 == len(found)


def test_an_append_adds_names_at_the_end(tmp_path: Path) -> None:
    """And the version before keeps its own."""
    _write(tmp_path / "x", [0, 1], ["cat", "dog"])
    before = _fingerprint(tmp_path / "x")
    _append(tmp_path / "x", [2], ["cat", "dog", "ant"], "b")
    _append(tmp_path / "x", [0], ["cat"], "c")  # begun before, and committed after

    assert ("cat", "dog", "ant") == _classes(tmp_path / "x")
    assert ("cat", "dog") == _classes(tmp_path / "x", before)


@pytest.mark.parametrize("names", [["ant", "cat", "dog"], ["dog", "cat"], None])
def test_an_append_that_means_something_else_is_refused(
    tmp_path: Path, names: list[str] | None
) -> None:
    """As where two appends add different classes at once: the one that comes second."""
    _write(tmp_path / "x", [0, 1], ["cat", "dog"])
    before = _fingerprint(tmp_path / "x")
    with pytest.raises(BadArgumentError, match=r"class 0 of column 'label' is 'cat'|have columns"):
        _append(tmp_path / "x", [0], names, "b")

    assert before == _fingerprint(tmp_path / "x")


def test_folders_that_are_appended_keep_the_numbers_there_are(tmp_path: Path) -> None:
    """``ant`` comes before ``cat`` in the alphabet, and after it in the dataset that had none."""
    write_images(tmp_path / "one", "cat/1.jpg", "dog/1.jpg")
    write_images(tmp_path / "two", "ant/1.jpg", "dog/2.jpg")
    convert_files(str(tmp_path / "one"), str(tmp_path / "x"), source_format="images")
    convert_files(str(tmp_path / "two"), str(tmp_path / "x"), source_format="images", mode="append")
    with open_dataset(str(tmp_path / "x")) as dataset:
        labels = [
            row["label"]
            for block in range(dataset.block_count)
            for row in dataset.read_block(block).to_pylist()
        ]

    assert ("cat", "dog", "ant") == _classes(tmp_path / "x")
    assert [0, 1, 2, 1] == labels


def test_splits_that_are_appended_agree_with_one_another(tmp_path: Path) -> None:
    """A new split takes the numbers of those that are there; those that disagree are refused."""
    write_images(tmp_path / "one", "train/cat/1.jpg", "train/dog/1.jpg")
    write_images(tmp_path / "two", "train/ant/1.jpg", "val/dog/1.jpg")
    target = str(tmp_path / "x")
    convert_files(str(tmp_path / "one"), target, source_format="images")
    convert_files(str(tmp_path / "two"), target, source_format="images", mode="append")

    assert ("cat", "dog", "ant") == _classes(f"{target}/train") == _classes(f"{target}/val")

    _write(tmp_path / "x" / "test", [0], ["dog"])
    write_images(tmp_path / "two", "test/dog/1.jpg")
    with pytest.raises(BadArgumentError, match=r"class 0 of column 'label' is 'dog'"):
        convert_files(str(tmp_path / "two"), target, source_format="images", mode="append")


def test_numbers_that_no_class_has_are_refused(tmp_path: Path) -> None:
    """-1 is Hugging Face's word for none; beyond it and beyond the names nothing is meant."""
    for number, labels in enumerate(([0, -1, 1], [0, 2], [-2])):
        pq.write_table(pa.table({"label": labels}), tmp_path / f"{number}.parquet")
    options: Mapping[str, object] = {
        "source_format": "parquet",
        "write": WriteOptions(classes={"label": ["a", "b"]}),
    }
    convert_files(str(tmp_path / "0.parquet"), str(tmp_path / "x"), **options)  # type: ignore[arg-type] # one set of options for all

    for number, wrong in ((1, "number 2, but there are 2"), (2, "number -2")):
        with pytest.raises(BadArgumentError, match=wrong):
            convert_files(str(tmp_path / f"{number}.parquet"), str(tmp_path / "y"), **options)  # type: ignore[arg-type] # as above
    assert ("a", "b") == _classes(tmp_path / "x")


def test_repair_finds_the_names_in_the_shards(tmp_path: Path) -> None:
    """The longest list, where the manifest is gone and shards of an append have more."""
    _write(tmp_path / "x", [0, 1], ["cat", "dog"])
    _append(tmp_path / "x", [2], ["cat", "dog", "ant"], "part-00001")
    before = _fingerprint(tmp_path / "x")
    for path in [tmp_path / "x" / "headrace.json", *(tmp_path / "x" / "manifests").iterdir()]:
        path.unlink()
    report = repair_manifest(open_store(str(tmp_path / "x")), patterns=["part-*.arrow"])

    assert ("cat", "dog", "ant") == _classes(tmp_path / "x")
    assert before == report.fingerprint


def _hugging_face(names: Sequence[str]) -> dict[bytes, bytes]:
    features = {
        "label": {"names": list(names), "_type": "ClassLabel"},
        "tags": {"feature": {"names": ["x", "y"], "_type": "ClassLabel"}, "_type": "List"},
    }
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def test_parquet_of_hugging_face_brings_its_names_along(tmp_path: Path) -> None:
    """Served as it is and converted; where two files disagree the column has none."""
    table = pa.table({"label": [0, 1], "tags": [[0], [1, 0]]})
    for name, names in (("a", ["cat", "dog"]), ("b", ["cat", "dog"]), ("c", ["dog", "cat"])):
        path = tmp_path / ("same" if name != "c" else "other") / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table.replace_schema_metadata(_hugging_face(names)), path)
    convert_files(str(tmp_path / "same"), str(tmp_path / "x"), source_format="parquet")
    (tmp_path / "same" / "a.parquet").rename(tmp_path / "other" / "a.parquet")

    assert ("cat", "dog") == _classes(tmp_path / "x") == _classes(tmp_path / "same")
    with open_dataset(str(tmp_path / "x")) as dataset:
        assert ("x", "y") == classes_of(dataset.schema.field("tags"))
    assert _classes(tmp_path / "other") is None


def test_inspect_shows_them(tmp_path: Path) -> None:
    """A line for people, all of them for programs."""
    names = [f"class {number}" for number in range(30)]
    _write(tmp_path / "x", [0, 29], names)
    shown, told = run("inspect", str(tmp_path / "x")), run("inspect", str(tmp_path / "x"), "--json")

    assert "classes of label: 0 class 0, 1 class 1, " in shown.stdout
    assert "--json has all 30" in shown.stdout
    assert names == json.loads(told.stdout)["columns"][0]["classes"]


def test_a_loop_sees_the_names_of_the_version_it_reads(tmp_path: Path) -> None:
    """Over a real server, before the first batch; a run that goes on keeps its version's names."""
    _write(tmp_path / "x", [0, 1], ["cat", "dog"])
    with start_server(_config(x=tmp_path / "x")) as server:
        older = RemoteDataset(server.address, "x", batch_size=1)
        state = older.state_dict()

        assert {"label": ("cat", "dog")} == dict(older.classes)
        assert older.classes is older.classes
    _append(tmp_path / "x", [2], ["cat", "dog", "ant"], "b")
    with start_server(_config(x=tmp_path / "x")) as server:
        newer = RemoteDataset(server.address, "x", batch_size=1)
        found = [newer.classes["label"]]
        newer.load_state_dict(state)
        found.append(newer.classes["label"])

        assert [("cat", "dog", "ant"), ("cat", "dog")] == found
        assert "image" not in newer.classes
        with pytest.raises(KeyError, match="'image' has no classes; columns with classes: label"):
            newer.classes["image"]


def test_a_loop_of_arrays_sees_them_too(tmp_path: Path) -> None:
    """`NumpyDataset`: of the version that its token names, and before it of the newest."""
    _write(tmp_path / "x", [0, 1], ["cat", "dog"])
    with start_server(_config(x=tmp_path / "x")) as server:
        older = NumpyDataset(server.address, "x", batch_size=1)

        assert {"label": ("cat", "dog")} == dict(older.classes)
        assert older.classes is older.classes
        next(iter(older))
    _append(tmp_path / "x", [2], ["cat", "dog", "ant"], "b")
    with start_server(_config(x=tmp_path / "x")) as server:
        newer = NumpyDataset(server.address, "x", batch_size=1)
        resumed = NumpyDataset(server.address, "x", batch_size=1).resume(older.token)

        assert [("cat", "dog", "ant"), ("cat", "dog")] == [
            dataset.classes["label"] for dataset in (newer, resumed)
        ]


def test_a_mixture_has_the_names_on_which_its_datasets_agree(tmp_path: Path) -> None:
    """More behind the same ones is agreement; other ones, or none, are an error when looked at."""
    _write(tmp_path / "a", [0, 1], ["cat", "dog"])
    _write(tmp_path / "b", [0, 2], ["cat", "dog", "ant"])
    _write(tmp_path / "c", [0, 1], ["dog", "cat"])
    _write(tmp_path / "d", [0, 1], None)
    urls = {name: tmp_path / name for name in "abcd"}

    with start_server(_config(**urls)) as server:

        def classes(*names: str) -> Classes:
            mixture = Mixture(tuple(MixtureEntry(name) for name in names))
            return RemoteDataset(server.address, mixture, batch_size=1).classes

        assert ("cat", "dog", "ant") == classes("a", "b")["label"] == classes("b", "a")["label"]
        assert "Classes(label: 3)" == repr(classes("b", "a"))
        with pytest.raises(
            UnsupportedColumnError, match=r"class 0 .* is 'cat' in b but 'dog' in c"
        ):
            classes("b", "c")["label"]
        with pytest.raises(UnsupportedColumnError, match="classes in a but not in d"):
            classes("a", "d")["label"]


def test_names_that_do_not_fit_are_told_and_not_cut(tmp_path: Path) -> None:
    """512 KiB in all: a column passes whole, or only its number does, and looking at it says so."""
    small, large = ["cat", "dog"], [f"{number:07}" + "x" * 100 for number in range(6000)]
    fields = [
        with_classes(pa.field(name, pa.int64()), names)
        for name, names in (("a", small), ("b", large), ("c", small))
    ]
    table = pa.table({"a": [0], "b": [5999], "c": [1]}, schema=pa.schema(fields))
    write_dataset(str(tmp_path / "x"), table, shard_samples=[1])
    with start_server(_config(x=tmp_path / "x")) as server:
        classes = RemoteDataset(server.address, "x", batch_size=1).classes
        with pytest.raises(UnsupportedColumnError, match=r"6,000 classes.*headrace inspect"):
            classes["b"]

        assert (("cat", "dog"),) * 2 == (classes["a"], classes["c"])
    assert tuple(large) == _labels_in_store(tmp_path / "x")


def _labels_in_store(url: Path) -> tuple[str, ...] | None:
    with open_dataset(str(url)) as dataset:
        return classes_of(dataset.schema.field("b"))


@pytest.mark.parametrize("counts", [[30_000], [40_000], [320, 35_858, 12], [20_000] * 3])
def test_a_response_stays_below_its_limit(counts: list[int]) -> None:
    """Whatever the columns: names that were sent take 512 KiB at most, and each is whole."""
    fields = [
        with_classes(pa.field(f"c{at}", pa.int64()), [f"{n:014}" for n in range(count)])
        for at, count in enumerate(counts)
    ]
    sent = class_messages(pa.schema(fields))

    assert counts == [message.class_count for message in sent]
    assert pb.GetDatasetResponse(classes=sent).ByteSize() < MAX_SENT_BYTES + 1024
    assert all(len(message.names) in {0, message.class_count} for message in sent)


@pytest.mark.long
def test_spark_writes_names_beside_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """What the caller says of a column of integers."""
    frame = spark.createDataFrame([(0,), (1,)], "label int")
    write_shards(frame, str(tmp_path / "x"), write=WriteOptions(classes={"label": ["cat", "dog"]}))

    assert ("cat", "dog") == _classes(tmp_path / "x")


def _config(**urls: Path) -> ServerConfig:
    return ServerConfig(
        datasets={name: str(url) for name, url in urls.items()}, listen="127.0.0.1:0"
    )
