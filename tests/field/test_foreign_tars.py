"""Members of a tar file that are not whole samples side by side are refused by name."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headrace.cli.group import run
from headrace.converter import convert_files
from headrace.errors import ConfigurationError
from headrace.storage import OpenDataset, open_dataset, store_index
from storage.webdataset.tar_files import tar_bytes, write_tar


def _rows(dataset: OpenDataset) -> list[dict[str, object]]:
    blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [row for block in blocks for row in block.to_pylist()]


def _tar(folder: Path, *arguments: str, names: Sequence[str]) -> None:
    command = ["tar", "--create", "--file", "../data/a.tar", *arguments, *names]
    (folder.parent / "data").mkdir(exist_ok=True)
    subprocess.run(command, cwd=folder, check=True, timeout=60)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Give a folder with the files of three samples."""
    folder = tmp_path / "files"
    folder.mkdir()
    for key in "abc":
        (folder / f"{key}.jpg").write_bytes(key.encode() * 700)
        (folder / f"{key}.txt").write_text(f"text {key}")
    return folder


_APART = ["a.jpg", "b.jpg", "c.jpg", "a.txt", "b.txt", "c.txt"]
_TOGETHER = sorted(_APART)


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar"])
def test_members_that_are_apart_are_refused(files: Path, form: str) -> None:
    """Half of each sample would come twice, and `--sort=name` is the way out."""
    data = files.parent / "data"
    _tar(files, f"--format={form}", names=_APART)
    with pytest.raises(ConfigurationError, match=r"a\.tar, at byte \d+: sample 'a' comes back"):
        open_dataset(str(data))
    for command in (["verify", str(data)], ["inspect", str(data)]):
        assert 0 != run(command)
    with pytest.raises(ConfigurationError, match="--sort=name"):
        store_index(str(data), str(files.parent / "index"))
    with pytest.raises(ConfigurationError, match="comes back"):
        convert_files(str(data), str(files.parent / "own"), source_format="webdataset")

    _tar(files.parent / "files", f"--format={form}", "--sort=name", names=["."])
    with open_dataset(str(data)) as dataset:
        assert ["text a", "text b", "text c"] == [row["txt"] for row in _rows(dataset)]


def test_a_member_that_was_updated_is_refused(files: Path) -> None:
    """`tar --append` writes the newer version behind the older one, which unpacking replaces."""
    _tar(files, names=_TOGETHER)
    (files / "b.txt").write_text("newer")
    command = ["tar", "--append", "--file", "../data/a.tar", "b.txt"]
    subprocess.run(command, cwd=files, check=True, timeout=60)

    with pytest.raises(ConfigurationError, match="sample 'b' comes back"):
        open_dataset(str(files.parent / "data"))


@pytest.mark.parametrize("names", [{"a.txt": b"1", "b.txt": b"2"}, {"a.txt": b"1", "a.cls": b"2"}])
def test_one_key_in_several_tars_is_as_before(tmp_path: Path, names: Mapping[str, bytes]) -> None:
    """Each file may count its samples from zero."""
    for name in ("x.tar", "y.tar"):
        write_tar(tmp_path / name, names)

    with open_dataset(str(tmp_path)) as dataset:
        assert 2 * len({name[0] for name in names}) == dataset.sample_count


def test_tars_with_other_columns_of_the_same_samples_are_refused(tmp_path: Path) -> None:
    """Each sample would come once for each file, in parts."""
    write_tar(tmp_path / "images.tar", {"a.jpg": b"1", "b.jpg": b"2"})
    write_tar(tmp_path / "texts.tar", {"a.txt": b"1", "b.txt": b"2"})

    with pytest.raises(ConfigurationError, match=r"texts\.tar has txt of sample 'a', and"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("form", "option"), [("gnu", None), ("pax", None), ("gnu", "--hard-dereference")]
)
def test_hard_links_are_refused_unless_they_have_content(
    files: Path, form: str, option: str | None
) -> None:
    """GNU tar writes the second name of a file as a link: the sample lacked its image."""
    (files / "c.jpg").unlink()
    os.link(files / "a.jpg", files / "c.jpg")
    _tar(files, f"--format={form}", *([option] if option else []), names=_TOGETHER)
    url = str(files.parent / "data")

    if option is None:
        with pytest.raises(
            ConfigurationError, match=r"'c\.jpg'.*hard link to 'a\.jpg'.*--hard-dereference"
        ):
            open_dataset(url)
        assert 0 != run(["verify", url])
    else:
        with open_dataset(url) as dataset:
            assert [b"a" * 700, b"b" * 700, b"a" * 700] == [r["jpg"] for r in _rows(dataset)]


def test_a_hard_link_with_content_is_a_file(tmp_path: Path) -> None:
    """The pax format allows the content of a file with each of its links."""
    whole = tar_bytes({"a.txt": b"x" * 600, "b.txt": b"x" * 600})
    second = tarfile.TarInfo("b.txt")
    second.type, second.linkname, second.size = tarfile.LNKTYPE, "a.txt", 600
    content = whole[:1536] + second.tobuf(tarfile.USTAR_FORMAT) + whole[2048:]
    (tmp_path / "a.tar").write_bytes(content)

    with open_dataset(str(tmp_path)) as dataset:
        assert ["x" * 600] * 2 == [row["txt"] for row in _rows(dataset)]


def test_symbolic_links_are_refused_unless_no_sample_has_them(files: Path) -> None:
    """With the option that follows them."""
    (files / "c.jpg").unlink()
    (files / "c.jpg").symlink_to("a.jpg")
    (files / "latest").symlink_to("a.jpg")
    _tar(files, names=[*_TOGETHER, "latest"])
    with pytest.raises(ConfigurationError, match=r"'c\.jpg'.*symbolic link.*--dereference"):
        open_dataset(str(files.parent / "data"))

    _tar(files, names=["a.jpg", "a.txt", "latest"])
    with open_dataset(str(files.parent / "data")) as dataset:
        assert 1 == dataset.sample_count


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_sparse_members_are_refused(files: Path, form: str) -> None:
    """What is stored of them is not their content."""
    with (files / "a.jpg").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x" * 4096)
    _tar(files, f"--format={form}", "--sparse", names=_TOGETHER)

    with pytest.raises(ConfigurationError, match=r"sparse.*without --sparse"):
        open_dataset(str(files.parent / "data"))


def test_a_part_of_an_archive_of_several_volumes_is_refused(files: Path) -> None:
    """The second volume begins with the rest of a member."""
    (files / "a.jpg").write_bytes(os.urandom(30_000))
    data = files.parent / "data"
    data.mkdir()
    volumes = [argument for at in "ab" for argument in ("--file", f"../data/{at}.tar")]
    command = ["tar", "--create", "--multi-volume", "--tape-length=20", *volumes, *_TOGETHER]
    subprocess.run(command, cwd=files, check=True, timeout=60)
    (data / "a.tar").unlink()

    with pytest.raises(ConfigurationError, match="several volumes"):
        open_dataset(str(data))


def test_global_headers_are_heard_and_may_be_taken_back(tmp_path: Path) -> None:
    """As Python's tarfile hears them; a comment, as `git archive` writes it, changes nothing."""
    member = tarfile.TarInfo("a.txt")
    member.size = 3
    parts = [
        tarfile.TarInfo.create_pax_global_header({"comment": "f00d", "path": "other/b.txt"}),
        tarfile.TarInfo.create_pax_global_header({"path": ""}),
        member.tobuf(tarfile.USTAR_FORMAT) + b"one".ljust(512, b"\0"),
    ]
    (tmp_path / "a.tar").write_bytes(b"".join(parts) + bytes(1024))

    with open_dataset(str(tmp_path)) as dataset:
        assert [{"__key__": "a", "txt": "one"}] == _rows(dataset)


def test_names_of_python_and_gnu_tar_agree_with_those_of_python(tmp_path: Path) -> None:
    """Long ones, in each format, after global headers."""
    names = [f"{'d' * 90}/{at:0120d}.txt" for at in range(3)]
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w", format=form, pax_headers={"comment": "x"}) as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name))
        (tmp_path / "a.tar").write_bytes(sink.getvalue())
        with open_dataset(str(tmp_path)) as dataset:
            assert [name[:-4] for name in names] == [row["__key__"] for row in _rows(dataset)]
