"""A URL means the same everywhere, whatever characters its path has."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import BadArgumentError
from headrace.storage import open_dataset, open_store
from support.datasets import small_table, write_dataset
from support.s3 import S3

_NAMES = ("a#b", "a?b", "a%23b", "a b", "a&b=c", "ü")


@pytest.mark.parametrize("name", _NAMES)
def test_names_of_objects_may_have_any_character(s3: S3, tmp_path: Path, name: str) -> None:
    """The object that is written is the one that is read and listed, in each kind of store."""
    for url in (s3.url("d"), str(tmp_path), "memory://headrace-urls"):
        store = open_store(url)
        store.write(f"x/{name}", name.encode())

        assert name.encode() == store.read(f"x/{name}")
        assert f"x/{name}" in list(store.list("x/"))
        store.delete(f"x/{name}")


def test_folders_may_have_any_character(s3: S3, tmp_path: Path) -> None:
    """A dataset is where its URL says, and not in a folder whose name ends earlier."""
    for url in (f"{s3.url('a#b')}/d", f"file://{tmp_path}/a#b?c/d", f"{tmp_path}/e#f?g/d"):
        write_dataset(url, small_table(10), shard_samples=[10])
        with open_dataset(url) as dataset:
            assert 10 == dataset.sample_count
    assert (tmp_path / "a#b?c" / "d" / "headrace.json").is_file()
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("s3://bucket/a?b", r"s3://bucket/a\?\(hidden\).*rename a folder whose name contains \?"),
        ("azure://container/x", "expected az://CONTAINER/PATH or abfs://"),
        ("wasbs://container@account/x", "expected abfss://CONTAINER@ACCOUNT"),
        ("nope://x/y", "a scheme whose fsspec package is installed"),
    ],
)
def test_what_a_url_cannot_say_is_refused_with_what_can(url: str, advice: str) -> None:
    """A query may be a secret or a name, and other programs have other names for Azure."""
    with pytest.raises(BadArgumentError, match=advice):
        open_store(url)
