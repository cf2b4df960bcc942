"""What is left of expired conversions, whatever else happens to them."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.converter.api.conversions_folder import ConversionCache, ConversionRecord
from headrace.storage import StoreOptions

_KEY = "0" * 32
_SHARD = "shards/a.arrow"


def _expired(folder: Path) -> ConversionCache:
    cache = ConversionCache(str(folder), options=StoreOptions())
    _write(folder, "headrace.json", _SHARD, ".headrace.lock")
    cache.write(ConversionRecord(_KEY, made_s=1.0, expires_s=2.0))
    return cache


def _write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / _KEY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_a_removal_that_failed_midway_goes_on(tmp_path: Path) -> None:
    """What could not be removed is found again, and does not stay for ever."""
    cache = _expired(tmp_path)
    pointer = tmp_path / _KEY / "headrace.json"
    pointer.unlink()
    (pointer / "in-the-way").mkdir(parents=True)  # a folder cannot be deleted as a file
    cache.remove_expired(3.0)
    record = cache.read(_KEY)
    (pointer / "in-the-way").rmdir()
    pointer.rmdir()
    cache.remove_expired(3.0)

    assert record is not None
    assert record.is_expired(3.0)
    assert cache.read(_KEY) is None
    assert not (tmp_path / _KEY).exists()


def test_what_cannot_be_removed_keeps_no_other_conversion(tmp_path: Path) -> None:
    """The next expired conversion is removed all the same."""
    cache, other = _expired(tmp_path), "1" * 32
    pointer = tmp_path / _KEY / "headrace.json"
    pointer.unlink()
    pointer.mkdir()
    cache.write(ConversionRecord(other, made_s=1.0, expires_s=2.0))
    cache.remove_expired(3.0)

    assert cache.read(other) is None


def test_what_is_being_converted_again_is_not_removed(tmp_path: Path) -> None:
    """A driver claims an expired key before it converts; then no other removes its files."""
    cache = _expired(tmp_path)
    cache.claim(_KEY, 3.0)
    cache.remove_expired(4.0)
    claimed = cache.read(_KEY)

    assert claimed is not None
    assert claimed.is_claim
    assert (tmp_path / _KEY / _SHARD).exists()

    cache.remove_expired(3.0 + 8 * 86400)  # the driver has died

    assert cache.read(_KEY) is None
    assert not (tmp_path / _KEY).exists()


def test_a_removal_that_stalls_spares_what_is_converted_meanwhile(tmp_path: Path) -> None:
    """It has listed the old files when another driver claims the key and converts again."""
    cache = _expired(tmp_path)
    listed = cache._files(_KEY)
    cache.claim(_KEY, 3.0)
    _write(tmp_path, "headrace.json", "shards/b.arrow")
    os.utime(tmp_path / _KEY / "headrace.json", ns=(1, 1))  # a coarse clock may not have moved
    cache._remove_files(_KEY, listed)

    left = sorted(path.name for path in (tmp_path / _KEY).rglob("*") if path.is_file())
    assert [".headrace.lock", "b.arrow", "headrace.json"] == left
