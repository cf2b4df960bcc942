"""What lies in folders becomes datasets, without Spark: the same samples, the types they had."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headrace.converter import Progress, WriteOptions, convert_files
from headrace.converter.sources.pieces import dataset_pieces
from headrace.errors import (
    BadArgumentError,
    ColumnNotFoundError,
    DatasetExistsError,
    NotADatasetError,
)
from headrace.storage import (
    FORMAT_KEY,
    SourceOptions,
    StoreOptions,
    classes_of,
    open_dataset,
    open_store,
)
from headrace.storage.mds import MdsWriter, commit_mds
from support.images import image_bytes, write_images
from support.s3 import S3

HUGGING_FACE = Path(__file__).parents[1] / "golden" / "hugging_face"
PNG = b"\x89PNG\r\n\x1a\n"


def _samples(url: str) -> list[dict[str, object]]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return pa.Table.from_batches(blocks).to_pylist()


def _schema(url: str) -> pa.Schema:
    with open_dataset(url) as dataset:
        return dataset.schema


def test_a_hugging_face_dataset_keeps_its_splits_and_values(tmp_path: Path) -> None:
    """What datasets 4 wrote with save_to_disk: every sample of every split, in order."""
    written = convert_files(str(HUGGING_FACE), str(tmp_path), source_format="huggingface")
    train, test = _samples(str(tmp_path / "train")), _samples(str(tmp_path / "test"))

    assert {"train": 7, "test": 3} == {k: sum(v.sample_counts) for k, v in written.items()}
    assert list(range(10)) == [sample["id"] for sample in train + test]
    assert [None, "t1"] == [sample["text"] for sample in train[:2]]
    assert [1, 1.5, 2] == train[1]["vec"]
    assert [5, 1, 2, 3] == train[5]["grid"]
    assert [0, 1, 2] == train[3]["tokens"]
    assert {"a": 6, "b": "q"} == train[6]["nested"]
    assert {PNG} == {sample["image"][:8] for sample in train if isinstance(sample["image"], bytes)}


def test_hugging_face_types_are_kept(tmp_path: Path) -> None:
    """Tensors, small numbers and long strings stay; images become the bytes of their files."""
    convert_files(str(HUGGING_FACE / "train"), str(tmp_path), source_format="huggingface")
    schema = _schema(str(tmp_path))

    assert pa.fixed_shape_tensor(pa.uint8(), (2, 2)) == schema.field("grid").type
    assert pa.list_(pa.field("item", pa.float32(), nullable=False), 3) == schema.field("vec").type
    assert [pa.float16(), pa.large_string(), pa.binary(), pa.timestamp("s")] == [
        schema.field(name).type for name in ("half", "long", "image", "when")
    ]


def test_an_arrow_file_with_a_footer_is_read_as_well(tmp_path: Path) -> None:
    """Older writers left files where newer ones leave streams."""
    table = pa.table({"x": [1, 2, 3]})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    convert_files(str(tmp_path), str(tmp_path / "out"), source_format="huggingface")

    assert [{"x": 1}, {"x": 2}, {"x": 3}] == _samples(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("strange", "found"),
    [
        ([[1, 2, 3, 4], [5, 6]], "length of 4 on axis 1"),
        ([[1, 2], [3, 4], [5, 6]], "length of 3 on axis 0"),
        (None, "null on axis 0"),
        ([[1, 2, 3], None], "null on axis 1"),
        ([[1, 2, 3], [4, None, 6]], "null inside"),
    ],
)
def test_arrays_of_another_shape_are_refused(
    tmp_path: Path, strange: list[list[int]] | None, found: str
) -> None:
    """Also those with as many numbers, which would stand in other places."""
    grids = pa.array([[[1, 2, 3], [4, 5, 6]], strange], pa.list_(pa.list_(pa.int32())))
    table = pa.table({"grid": grids})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    feature = {"shape": [2, 3], "dtype": "int32", "_type": "Array2D"}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": {"grid": feature}}))

    with pytest.raises(BadArgumentError, match=rf"column 'grid' of .*sample.*{found}"):
        convert_files(str(tmp_path), str(tmp_path / "out"), source_format="huggingface")


def test_rows_chosen_by_an_index_are_refused(tmp_path: Path) -> None:
    """The files hold other rows than the dataset: says what to do."""
    shutil.copytree(HUGGING_FACE / "train", tmp_path / "train")
    state = json.loads((tmp_path / "train" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "train" / "state.json").write_text(json.dumps(state))

    with pytest.raises(BadArgumentError, match="flatten_indices"):
        convert_files(str(tmp_path / "train"), str(tmp_path / "out"), source_format="huggingface")


def _write_mds(url: str) -> None:
    schema = pa.schema(
        [
            pa.field("tokens", pa.list_(pa.field("item", pa.uint16(), nullable=False), 4)),
            pa.field("text", pa.string(), nullable=False),
        ]
    )
    tokens = pa.FixedSizeListArray.from_arrays(
        pa.array(np.arange(400, dtype=np.uint16)), type=schema.field("tokens").type
    )
    texts = pa.array([str(number) for number in range(100)])
    batch = pa.RecordBatch.from_arrays([tokens, texts], schema=schema)
    store = open_store(url)
    with MdsWriter(store, schema, folder="part-0", compression="zstd") as writer:
        writer.append(batch)
        commit_mds(store, writer.close())


def test_pieces_come_from_one_opening(tmp_path: Path) -> None:
    """A conversion opens its source once: opening tars for every piece took quadratic time."""
    _write_mds(str(tmp_path))

    with dataset_pieces(
        str(tmp_path), options=StoreOptions(), source_options=SourceOptions()
    ) as pieces:
        (tmp_path / "index.json").unlink()
        read = [batch for piece in range(pieces.count) for batch in pieces.read(piece)]

    assert pieces.dataset.sample_count == sum(batch.num_rows for batch in read)


def test_an_index_without_shards_is_refused_by_its_name(tmp_path: Path) -> None:
    """What a writer of MDS left that failed before its first shard names the folder."""
    (tmp_path / "index.json").write_text('{"shards": [], "version": 2}')

    with pytest.raises(NotADatasetError, match=f"{tmp_path} has neither samples nor columns"):
        convert_files(str(tmp_path), str(tmp_path / "own"), source_format="mds")


def test_mds_becomes_arrow_and_mds_again(tmp_path: Path) -> None:
    """A Mosaic dataset moves in with its types, and out again as freely."""
    mds, own, back = (str(tmp_path / name) for name in ("mds", "own", "back"))
    _write_mds(mds)
    convert_files(mds, own, source_format="mds")
    convert_files(
        own, back, source_format="headrace", format="mds", write=WriteOptions(compression="zstd")
    )

    assert _samples(mds) == _samples(own) == _samples(back)
    assert pa.uint16() == _schema(own).field("tokens").type.value_type
    assert _schema(mds) == _schema(back)


def test_a_delta_table_is_read_at_its_version(tmp_path: Path) -> None:
    """Rows of the current version alone, without Spark's Delta jars."""
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"x": [1, 2]}))
    write_deltalake(table, pa.table({"x": [3]}), mode="overwrite")
    convert_files(table, str(tmp_path / "out"), source_format="delta")

    assert [{"x": 3}] == _samples(str(tmp_path / "out"))


def test_images_come_with_the_numbers_of_their_folders(tmp_path: Path, s3: S3) -> None:
    """Every image file below the URL in the order of paths; other files are left out."""
    names = [f"{kind}/{i:02d}.png" for kind, n in (("cat", 3), ("dog", 12)) for i in range(n)]
    images = write_images(tmp_path / "photos", *names)
    (tmp_path / "photos" / "notes.txt").write_text("none")
    convert_files(str(tmp_path / "photos"), s3.url("photos"), source_format="images")
    samples = _samples(s3.url("photos"))
    schema = _schema(s3.url("photos"))

    assert [0] * 3 + [1] * 12 == [sample["label"] for sample in samples]
    assert ("cat", "dog") == classes_of(schema.field("label"))
    assert list(images.values()) == [sample["image"] for sample in samples]
    assert b"png" == (schema.field("image").metadata or {})[FORMAT_KEY]


def test_images_that_are_compressed_are_not_compressed_again(tmp_path: Path) -> None:
    """A PNG's bytes are in the shard as they are; bitmaps are made smaller, and by a wish PNGs."""
    for name in ("a.png", "b.bmp"):
        folder = tmp_path / name[-3:] / "label"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(image_bytes(name[-3:], side=200))
    convert_files(str(tmp_path / "png"), str(tmp_path / "plain"), source_format="images")
    convert_files(str(tmp_path / "bmp"), str(tmp_path / "smaller"), source_format="images")
    convert_files(
        str(tmp_path / "png"),
        str(tmp_path / "asked"),
        source_format="images",
        write=WriteOptions(compression="lz4"),
    )
    contents = {
        "plain": image_bytes("png", side=200),
        "smaller": image_bytes("bmp", side=200),
        "asked": image_bytes("png", side=200),
    }
    kept = {
        name: content in next((tmp_path / name).glob("shards/*")).read_bytes()
        for name, content in contents.items()
    }

    assert {"plain": True, "smaller": False, "asked": False} == kept


def test_columns_types_and_splits_are_those_of_write_shards(tmp_path: Path) -> None:
    """Renamed, cast, and divided by the values of a column that is left out."""
    pq.write_table(
        pa.table({"x": range(100), "y": range(100), "part": ["train", "val"] * 50}),
        tmp_path / "t.parquet",
    )
    out = tmp_path / "out"
    written = convert_files(
        str(tmp_path / "t.parquet"),
        str(out),
        source_format="parquet",
        columns={"x": "label", "part": "part"},
        write=WriteOptions(types={"label": "uint8"}, compression="zstd", compression_level=9),
        splits="part",
    )

    assert {"train", "val"} == set(written)
    assert [{"label": value} for value in range(1, 100, 2)] == _samples(str(out / "val"))
    assert pa.uint8() == _schema(str(out / "val")).field("label").type


def test_pieces_are_converted_side_by_side_and_keep_their_order(tmp_path: Path) -> None:
    """Many files on several threads give the samples, and the fingerprint, of one thread."""
    for number in range(8):
        table = pa.table({"x": range(1000 * number, 1000 * (number + 1))})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=100)
    seen: list[Progress] = []
    results = [
        convert_files(
            str(tmp_path),
            f"{tmp_path}-{threads}",
            source_format="parquet",
            threads=threads,
            progress=seen.append,
        )
        for threads in (1, 4)
    ]

    assert results[0][""].fingerprint == results[1][""].fingerprint
    assert list(range(8000)) == [sample["x"] for sample in _samples(f"{tmp_path}-4")]
    assert (8000, seen[-1].tasks_total) == (seen[-1].sample_count, seen[-1].tasks_done)


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """A value that does not fit its type, in the last of many files: no dataset and no shard."""
    for number in range(6):
        value = 300 if number == 5 else number
        pq.write_table(pa.table({"x": [value]}), tmp_path / f"{number}.parquet")
    out = tmp_path / "out"

    with pytest.raises(BadArgumentError, match="300, which uint8 cannot represent"):
        convert_files(
            str(tmp_path),
            str(out),
            source_format="parquet",
            write=WriteOptions(types={"x": "uint8"}),
        )

    assert [] == list(open_store(str(out)).list())


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while pieces are converted: no dataset and no shard."""
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "t.parquet")

    def interrupt(progress: Progress) -> None:
        del progress
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_files(
            str(tmp_path / "t.parquet"),
            str(tmp_path / "out"),
            source_format="parquet",
            progress=interrupt,
        )

    assert [] == list(open_store(str(tmp_path / "out")).list())


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    """No dataset of that kind, no such column, a dataset that is there already."""
    url = str(tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotADatasetError, match="save_to_disk"):
        convert_files(url, f"{url}-out", source_format="huggingface")
    with pytest.raises(BadArgumentError, match="no image below"):
        convert_files(url, f"{url}-out", source_format="images")
    with pytest.raises(NotADatasetError, match=r"index\.json"):
        convert_files(url, f"{url}-out", source_format="mds")

    train = str(HUGGING_FACE / "train")
    with pytest.raises(ColumnNotFoundError, match="'colour'; there are id, text"):
        convert_files(train, f"{url}-out", source_format="huggingface", columns=["colour"])
    convert_files(train, f"{url}-out", source_format="huggingface")
    with pytest.raises(DatasetExistsError):
        convert_files(train, f"{url}-out", source_format="huggingface")
