"""A folder of images becomes what its names say, or is refused with what was found."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.inputs.formats import detect_format
from headrace.converter import FilesLeftOut, ImageOptions, convert_files
from headrace.converter.images.intact import problem_of
from headrace.converter.images.layout import plan_folder
from headrace.converter.images.listing import Listing
from headrace.errors import BadArgumentError, DatasetExistsError
from headrace.storage import FORMAT_KEY, classes_of, open_dataset, open_store
from support.command import run
from support.images import FORMATS, image_bytes, write_images

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.s3 import S3


def _convert(
    source: Path | str,
    target: Path | str,
    *,
    label: Any = None,
    on_error: Any = "refuse",
    **options: Any,
) -> list[FilesLeftOut]:
    told: list[Any] = []
    convert_files(
        str(source),
        str(target),
        source_format="images",
        images=ImageOptions(label=label, on_error=on_error),
        left_out=told.append,
        **options,
    )
    return told


def _labelled(url: Path | str) -> list[tuple[bytes, str | None]]:
    """Return each image of a dataset with the name of its class."""
    with open_dataset(str(url)) as dataset:
        has_labels = "label" in dataset.schema.names
        names = (classes_of(dataset.schema.field("label")) if has_labels else None) or ()
        rows = [
            row
            for block in range(dataset.block_count)
            for row in dataset.read_block(block).to_pylist()
        ]
    return [(row["image"], names[row["label"]] if has_labels else None) for row in rows]


def _classes(url: Path | str) -> tuple[str, ...] | None:
    with open_dataset(str(url)) as dataset:
        return classes_of(dataset.schema.field("label"))


def test_a_license_does_not_make_images_text(tmp_path: Path) -> None:
    """The whole way by the command line: guessed, converted, told; hidden files are not told."""
    images = write_images(tmp_path / "src", "cat/1.jpg", "dog/1.png", "dog/2.JPG")
    (tmp_path / "src" / "LICENSE.txt").write_text("MIT")
    (tmp_path / "src" / "cat" / "notes.md").write_text("a cat")
    write_images(tmp_path / "src", ".git/x.png", "cat/.1.jpg", "cat/.thumbs/1.png")
    done = run("convert", str(tmp_path / "src"), str(tmp_path / "out"))

    assert 0 == done.returncode, done.stderr
    assert "left out 2 files (not an image by its name, " in done.stderr
    assert "LICENSE.txt, cat/notes.md" in done.stderr
    assert [
        (images["cat/1.jpg"], "cat"),
        (images["dog/1.png"], "dog"),
        (images["dog/2.JPG"], "dog"),
    ] == _labelled(tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["LICENSE.txt", "a/1.jpg"], "images"),
        (["README.txt", "LICENCE.txt", "NOTICE.txt", "a/1.webp"], "images"),
        (["classes.json", "1.png", "2.png"], "images"),
        ([".DS_Store", ".x.txt", ".git/a.txt", ".git/b.txt", "a/1.png"], "images"),
        (["__MACOSX/a.txt", "__MACOSX/b.txt", "1.gif"], "images"),
        (["LICENSE.txt", "part-0.parquet"], "parquet"),
        (["LICENSE.txt"], "text"),
        (["1.png", "a.csv", "b.csv", "c.csv"], "csv"),
        ([*(f"{i}.jpg" for i in range(20)), "labels.csv", "more.csv"], "images"),
    ],
)
def test_the_format_is_that_of_most_files(tmp_path: Path, names: list[str], kind: str) -> None:
    """Not of the first; documents and what is hidden have no say."""
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert kind == detect_format(str(tmp_path))


def test_a_mixture_of_formats_is_refused_with_what_was_found(tmp_path: Path) -> None:
    """A caption beside each image: either may be meant."""
    for number in range(4):
        write_images(tmp_path, f"{number}.jpg")
        (tmp_path / f"{number}.txt").touch()

    with pytest.raises(
        BadArgumentError, match="suggest several formats: 4 of images, 4 of text; pass --format"
    ):
        detect_format(str(tmp_path))


def test_splits_share_one_list_of_classes(tmp_path: Path) -> None:
    """The sorted union, so that a number means the same in each; a flat split has no labels."""
    images = write_images(
        tmp_path / "src",
        *("train/dog/1.jpg", "train/cat/1.jpg", "val/ant/1.jpg", "val/dog/1.jpg", "test/1.jpg"),
    )
    _convert(tmp_path / "src", tmp_path / "out")

    assert ("ant", "cat", "dog") == _classes(tmp_path / "out" / "train")
    assert ("ant", "cat", "dog") == _classes(tmp_path / "out" / "val")
    assert [
        (images["train/cat/1.jpg"], "cat"),
        (images["train/dog/1.jpg"], "dog"),
    ] == _labelled(tmp_path / "out" / "train")
    assert [(images["test/1.jpg"], None)] == _labelled(tmp_path / "out" / "test")


def test_splits_of_the_folder_and_splits_asked_for_exclude_each_other(tmp_path: Path) -> None:
    """Nothing tells which of them were meant."""
    write_images(tmp_path / "src", "train/a/1.jpg", "val/a/1.jpg")

    with pytest.raises(BadArgumentError, match="already has splits, train, val"):
        _convert(tmp_path / "src", tmp_path / "out", splits={"a": 0.5, "b": 0.5})
    assert not (tmp_path / "out").exists()


def test_a_split_that_is_there_stops_all_of_them(tmp_path: Path) -> None:
    """Before an image is read; and a split that is damaged leaves none behind."""
    write_images(tmp_path / "src", "train/a/1.jpg", "val/a/1.jpg")
    _convert(tmp_path / "src" / "val", tmp_path / "out" / "val")
    with pytest.raises(DatasetExistsError):
        _convert(tmp_path / "src", tmp_path / "out")
    assert not (tmp_path / "out" / "train").exists()

    (tmp_path / "src" / "val" / "a" / "1.jpg").write_bytes(b"no image")
    with pytest.raises(BadArgumentError, match=r"val/a/1\.jpg"):
        _convert(tmp_path / "src", tmp_path / "new")
    assert [] == list(open_store(str(tmp_path / "new")).list())


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["cat/1.jpg", "1.jpg"], "1 in no folder, such as 1.jpg; 1 in 1 folders, such as cat"),
        (["cat/a/1.jpg", "cat/b/1.jpg"], "2 in 2 folders, such as cat/a/1.jpg"),
        (["train/cat/1.jpg", "bus/cat/1.jpg"], "1 in bus/, 1 in train/"),
        (["train/1.jpg", "test/1.jpg", "bus/1.jpg"], "test, train below"),
        (["Cat/1.jpg", "cat/1.jpg"], "'Cat' and 'cat'"),
        (["train/Cat/1.jpg", "val/cat/1.jpg"], "'Cat' and 'cat'"),
        (["cat /1.jpg", "cat/1.jpg"], "'cat' and 'cat '"),
        (["caf\u00e9/1.jpg", "cafe\u0301/1.jpg"], "may be the same"),
        (["a.txt", "b.avif"], "found 1 .txt, 1 .avif, expected names that end with"),
        ([], "found nothing"),
    ],
)
def test_what_names_leave_open_is_refused(names: list[str], found: str) -> None:
    """With a list of what was found, before anything is read."""
    with pytest.raises(BadArgumentError, match=re.escape(found)):
        plan_folder(Listing(files=[(name, 9) for name in sorted(names)]), place="SRC")


def test_a_folder_of_vehicles_may_have_trains() -> None:
    """``train`` beside other classes of the same depth is one of them."""
    names = ["bus/1.jpg", "car/1.jpg", "train/1.jpg"]
    plan = plan_folder(Listing(files=[(name, 9) for name in names]), place="SRC")

    assert ("bus", "car", "train") == plan.classes
    assert {"": [(name, 9, number) for number, name in enumerate(names)]} == plan.splits


def test_label_says_which_folder_is_the_class(tmp_path: Path) -> None:
    """The first of those that lie in one another, the last, or none; letters keep their case."""
    write_images(tmp_path / "src", "a/x/1.jpg", "A/x/1.jpg", "A/y/1.jpg")
    found: dict[str, object] = {}
    for label in ("first", "last"):
        _convert(tmp_path / "src", tmp_path / label, label=label)
        found[label] = (
            _classes(tmp_path / label),
            [name for _, name in _labelled(tmp_path / label)],
        )
    _convert(tmp_path / "src", tmp_path / "none", label="none")

    assert {
        "first": (("A", "a"), ["A", "A", "a"]),
        "last": (("x", "y"), ["x", "y", "x"]),
    } == found
    assert [None] * 3 == [name for _, name in _labelled(tmp_path / "none")]


def test_images_of_one_name_in_several_folders_are_several(tmp_path: Path) -> None:
    """What tells them apart is the whole path."""
    images = write_images(tmp_path / "src", "cat/1.jpg", "dog/1.jpg", "eel/1.jpg")
    _convert(tmp_path / "src", tmp_path / "out")

    assert [(content, name[:3]) for name, content in images.items()] == _labelled(tmp_path / "out")


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_the_bytes_say_what_an_image_is(tmp_path: Path, suffix: str) -> None:
    """A wrong ending changes no byte, and the column's note says what all bytes are."""
    content = image_bytes(suffix)
    wrong = tmp_path / "src" / "a" / "1.jpg"
    wrong.parent.mkdir(parents=True)
    wrong.write_bytes(content)
    _convert(tmp_path / "src", tmp_path / "out")

    assert [(content, "a")] == _labelled(tmp_path / "out")
    with open_dataset(str(tmp_path / "out")) as dataset:
        note = (dataset.schema.field("image").metadata or {})[FORMAT_KEY]
    assert FORMATS[suffix].lower().encode() == note


def test_a_png_among_jpegs_takes_the_note_away(tmp_path: Path) -> None:
    """Whoever decodes by the note would fail on one image of them."""
    write_images(tmp_path / "src", "a/1.jpg", "a/2.jpg")
    (tmp_path / "src" / "a" / "2.jpg").write_bytes(image_bytes("png"))
    _convert(tmp_path / "src", tmp_path / "out")
    with open_dataset(str(tmp_path / "out")) as dataset:
        metadata = dataset.schema.field("image").metadata or {}

    assert FORMAT_KEY not in metadata


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_whole_images_pass_and_cut_ones_do_not(suffix: str) -> None:
    """Of each format, cut at a half, at the last byte, at the head, and to nothing."""
    content = image_bytes(suffix, side=64)
    cuts = [0, 2, 16]
    if suffix != "tiff":  # its directory may stand in front of the pixels
        cuts += [len(content) // 2, len(content) - 1]

    assert problem_of(content) is None
    assert [] == [cut for cut in cuts if problem_of(content[:cut]) is None]


def test_a_gif_may_have_bytes_after_its_end() -> None:
    """Tools append text; decoders stop at the end, and a semicolon before it is none."""
    content = image_bytes("gif", side=64)
    told = content[:-1] + b"!\xfe\x01;\0"

    assert problem_of(content + b"made by a tool\n") is None
    assert problem_of(told + b";") is None
    assert problem_of(told) is not None


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_flipped_byte_of_a_png_is_noticed(at: int, flip: int) -> None:
    """Its parts have checks; what comes after its end is not looked at."""
    content = bytearray(image_bytes("png"))
    content[at % len(content)] ^= flip

    assert problem_of(bytes(content)) is not None


def test_a_page_of_html_is_refused_by_name_or_skipped_and_counted(tmp_path: Path) -> None:
    """As a download that failed leaves it; with a file that is empty, and one that is cut."""
    images = write_images(tmp_path / "src", "a/1.jpg", "a/2.jpg", "b/3.png", "b/4.jpg")
    (tmp_path / "src" / "a" / "2.jpg").write_bytes(b"<html>404</html>")
    with pytest.raises(BadArgumentError, match=r"a/2\.jpg in .* starts with b'<h"):
        _convert(tmp_path / "src", tmp_path / "out")
    assert [] == list(open_store(str(tmp_path / "out")).list())

    (tmp_path / "src" / "b" / "3.png").write_bytes(images["b/3.png"][:-5])
    (tmp_path / "src" / "b" / "4.jpg").write_bytes(b"")
    (tmp_path / "src" / "b" / "5.jpg").write_bytes(images["b/4.jpg"])
    told = _convert(tmp_path / "src", tmp_path / "out", on_error="skip")
    damaged = "a/2.jpg (it starts with b'<html>40', as no image does), b/3.png (its end is missing)"

    assert ["1 file (empty): b/4.jpg", f"2 files (not a complete image): {damaged}"] == [
        str(one) for one in told
    ]
    assert [(images["a/1.jpg"], "a"), (images["b/4.jpg"], "b")] == _labelled(tmp_path / "out")


@pytest.mark.parametrize(("size", "label"), [(0, None), (9, "first")])
def test_a_folder_of_which_nothing_is_left_is_refused(size: int, label: Any) -> None:
    """Otherwise a command that writes nothing would succeed."""
    how = ImageOptions(label=label, on_error="skip")
    with pytest.raises(BadArgumentError, match=r"are left out: .*1 file \(.*\): 1\.jpg"):
        plan_folder(Listing(files=[("1.jpg", size)]), place="SRC", how=how)


def test_a_file_that_is_too_large_is_refused_by_its_size() -> None:
    """Before it is read: no sample has 2 GiB."""
    listing = Listing(files=[("a/1.jpg", 1 << 31), ("a/2.jpg", 9)])
    with pytest.raises(BadArgumentError, match=r"more than 2,146,435,072 bytes\): a/1\.jpg"):
        plan_folder(listing, place="SRC")

    assert (
        1 == plan_folder(listing, place="SRC", how=ImageOptions(on_error="skip")).left_out[0].count
    )


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A class folder in Latin-1 has no name that could be shown; it is told with escapes."""
    write_images(tmp_path, "a/1.jpg")
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102 - a Path holds no bytes
    with open(folder + b"/1.jpg", "wb") as file:  # noqa: PTH123
        file.write(image_bytes())

    with pytest.raises(BadArgumentError, match=r"caf\\udce9/1\.jpg; rename them"):
        _convert(tmp_path, tmp_path / "out")
    told = _convert(tmp_path, tmp_path / "out", on_error="skip")
    assert 1 == told[0].count
    assert ("a",) == _classes(tmp_path / "out")


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    """A class may be a link to a folder; links upwards, to themselves or to nothing are told."""
    images = write_images(tmp_path, "elsewhere/1.jpg", "src/dog/1.jpg")
    (tmp_path / "src" / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "src" / "dog" / "up").symlink_to(tmp_path / "src")
    (tmp_path / "src" / "dog" / "self.jpg").symlink_to("self.jpg")
    (tmp_path / "src" / "dog" / "gone.jpg").symlink_to("nowhere.jpg")
    told = _convert(tmp_path / "src", tmp_path / "out")

    assert [
        "1 link (back to a folder that contains it): dog/up",
        "2 links (to nothing, or not to a file): dog/gone.jpg, dog/self.jpg",
    ] == [str(one) for one in told]
    assert [
        (images["elsewhere/1.jpg"], "cat"),
        (images["src/dog/1.jpg"], "dog"),
    ] == _labelled(tmp_path / "out")


def test_a_folder_without_images_is_no_class_and_is_told(tmp_path: Path) -> None:
    """A number would otherwise mean another class here than where the folder is filled."""
    write_images(tmp_path / "src", "bird/1.jpg", "dog/1.jpg")
    (tmp_path / "src" / "cat").mkdir()
    told = _convert(tmp_path / "src", tmp_path / "out")

    assert ["1 folder (no image in it, so no class): cat"] == [str(one) for one in told]
    assert ("bird", "dog") == _classes(tmp_path / "out")


def test_a_bucket_is_read_as_a_disk_is(tmp_path: Path, s3: S3) -> None:
    """Splits, classes, hidden files and folders' markers in S3."""
    images = write_images(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "val/dog/1.jpg")
    store = open_store(s3.url("photos"))
    for name, content in images.items():
        store.write(name, content)
    store.write("train/cat/.hidden.jpg", b"")
    store.write("LICENSE.txt", b"MIT")
    told = _convert(s3.url("photos"), s3.url("out"))

    assert "images" == detect_format(s3.url("photos"))
    assert ["1 file (not an image by its name, 1 .txt): LICENSE.txt"] == [str(one) for one in told]
    assert [
        (images["train/cat/1.jpg"], "cat"),
        (images["train/dog/1.jpg"], "dog"),
    ] == _labelled(s3.url("out/train"))


@pytest.mark.long
def test_spark_makes_the_same_of_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    """Splits, classes and bytes; only the order is Spark's."""
    write_images(tmp_path / "src", "train/cat/1.jpg", "train/dog/1.jpg", "val/dog/1.jpg")
    _convert(tmp_path / "src", tmp_path / "own")
    _convert(tmp_path / "src", tmp_path / "by_spark", spark=spark, shuffle_seed=3)

    for split in ("train", "val"):
        assert sorted(_labelled(tmp_path / "own" / split)) == sorted(
            _labelled(tmp_path / "by_spark" / split)
        )
        assert _classes(tmp_path / "own" / split) == _classes(tmp_path / "by_spark" / split)


_FOLDERS = st.text("aàbc. -_'", min_size=1, max_size=4).filter(
    lambda name: not name.startswith(".") and name == name.strip()
)


@given(st.lists(st.tuples(_FOLDERS, st.integers(0, 99)), min_size=1, unique=True))
def test_every_image_keeps_the_name_of_its_folder(files: list[tuple[str, int]]) -> None:
    """Whatever the names: the number stands for the folder, and numbers follow sorted names."""
    names = sorted((f"{folder}/{number}.jpg", 9) for folder, number in files)
    plan = plan_folder(Listing(files=names), place="SRC", how=ImageOptions(label="first"))

    assert sorted({folder for folder, _ in files}) == list(plan.classes)
    assert [(name, 9, name.split("/")[0]) for name, _ in names] == [
        (name, size, plan.classes[label])
        for name, size, label in plan.splits[""]
        if label is not None
    ]
    assert all(unicodedata.normalize("NFC", name) == name for name in plan.classes)
