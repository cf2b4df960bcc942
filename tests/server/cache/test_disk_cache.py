"""Tests of the cache's folder: verified, exact over restarts, one process's, never in the way."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest

from headrace.errors import ConfigurationError
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.disk.disk_cache import DiskCache
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.telemetry.metrics import Metrics
from headrace.storage import open_dataset
from support.datasets import small_table, write_dataset
from support.no_descriptors import no_descriptors
from support.no_threads import no_threads
from support.running import RICH_SAMPLES, Running, running, server_of
from support.served import epoch_request, read

_NAME = "0123456789abcdef" * 2
_PAGE = 4096
_EPOCH = epoch_request(dataset="rich", global_batch_size=100, with_ids=True)


@contextmanager
def _disk(folder: Path, *, pages: int = 100) -> Iterator[DiskCache]:
    disk = DiskCache(folder, budget_bytes=pages * _PAGE, observer=Metrics())
    disk.open(_NAME, block_count=1000)
    try:
        yield disk
    finally:
        disk.close()


def _put(disk: DiskCache, block: int, content: bytes) -> None:
    disk.put(_NAME, block, content)
    assert disk.flush(10)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.block"))


def _pages(folder: Path) -> int:
    return sum(-(-path.stat().st_size // _PAGE) for path in _files(folder))


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    """Another process's files are found, counted and returned; what was never put is not."""
    with _disk(tmp_path) as disk:
        _put(disk, 1, b"one")
        _put(disk, 2, b"")
    with _disk(tmp_path) as disk:
        assert 2 * _PAGE == disk.used_bytes
        assert [b"one", b"", None] == [disk.get(_NAME, block) for block in (1, 2, 3)]


def test_the_budget_holds_over_restarts(tmp_path: Path) -> None:
    """The files never take more than the budget; a smaller budget deletes down to it."""
    with _disk(tmp_path, pages=10) as disk:
        for block in range(30):
            _put(disk, block, bytes(5000))
            assert _pages(tmp_path) * _PAGE == disk.used_bytes <= 10 * _PAGE
    with _disk(tmp_path, pages=5) as disk:
        assert 4 * _PAGE == disk.used_bytes
        assert 4 == _pages(tmp_path)


@pytest.mark.parametrize("place", [0, 8, 24, 32, 40, 48, 60, -1])
def test_an_altered_file_is_not_believed(tmp_path: Path, place: int) -> None:
    """Any changed byte, of header or content, is found; nothing is returned."""
    with _disk(tmp_path) as disk:
        _put(disk, 1, b"content of a block")
        (path,) = _files(tmp_path)
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

        assert disk.get(_NAME, 1) is None
        assert disk.get(_NAME, 1) is None
        assert 0 == disk.used_bytes


def test_a_file_under_another_name_is_not_believed(tmp_path: Path) -> None:
    """A whole file of another block is no answer, nor is one that is cut short or gone."""
    with _disk(tmp_path) as disk:
        for block in (1, 2, 3):
            _put(disk, block, b"content")
        one, two, three = _files(tmp_path)
        two.write_bytes(one.read_bytes())
        one.write_bytes(three.read_bytes()[:-1])
        three.unlink()

        assert [None] * 3 == [disk.get(_NAME, block) for block in (1, 2, 3)]
        _put(disk, 1, b"content")
        assert b"content" == disk.get(_NAME, 1)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """What the cache did not write is not counted, deleted or overwritten, whatever its name."""
    dataset = tmp_path / _NAME
    dataset.mkdir()
    others = [tmp_path / "notes.txt", dataset / "1.block", dataset / "x.block"]
    others.append(dataset / f".{'0' * 32}.tmp")
    for path in others:
        path.write_bytes(b"precious")
    with _disk(tmp_path, pages=2) as disk:
        assert 0 == disk.used_bytes
        for block in range(5):
            _put(disk, block, b"x")
            disk.drop(_NAME, block)

    assert [b"precious"] * 4 == [path.read_bytes() for path in others]


def test_what_a_crash_left_is_deleted(tmp_path: Path) -> None:
    """A file that was being written when the process died goes at the next start."""
    with _disk(tmp_path) as disk:
        _put(disk, 1, b"content")
    (path,) = _files(tmp_path)
    unfinished = path.with_name(f".{'0' * 32}.tmp")
    unfinished.write_bytes(path.read_bytes()[:50])

    with _disk(tmp_path) as disk:
        assert not unfinished.exists()
        assert b"content" == disk.get(_NAME, 1)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """A second process is told so; when the first is gone the folder is free."""
    with (
        _disk(tmp_path),
        pytest.raises(ConfigurationError, match="in use by another server"),
        _disk(tmp_path),
    ):
        pass
    with _disk(tmp_path):
        pass


_LIMITED = """
import logging, pathlib, resource, sys
from headrace.server.cache.disk.disk_cache import DiskCache
from headrace.server.telemetry.metrics import Metrics
logging.basicConfig(level="WARNING", format="LOG %(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
disk = DiskCache(pathlib.Path(sys.argv[1]), budget_bytes=1 << 20, observer=Metrics())
disk.open("0" * 32, block_count=9)
for block in range(5):
    disk.put("0" * 32, block, bytes(5000))
    assert disk.flush(10)
    assert disk.get("0" * 32, block) is None
assert disk.used_bytes == 0
disk.close()
"""


def test_a_disk_that_takes_no_more_is_logged_once(tmp_path: Path) -> None:
    """Writes that fail leave nothing behind, say so once, and raise nothing."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=os.environ,
    )

    assert 1 == done.stderr.count("LOG ")
    assert "continues without" in done.stderr
    assert [] == list(tmp_path.glob("*/*"))


def _fetches(started: Running) -> tuple[float, float]:
    registry = started.server._metrics.registry
    hits = registry.get_sample_value("headrace_disk_cache_hits_total")
    misses = registry.get_sample_value("headrace_disk_cache_misses_total")
    assert hits is not None
    assert misses is not None
    return hits, misses


def _sample_ids(started: Running) -> list[int]:
    seen = read(started.channel, _EPOCH)
    for batch in seen.batches:
        assert batch.ids == batch.values["number"]
    return sorted(number for ids in seen.ids for number in ids)


def test_a_block_that_is_gone_is_no_fault_of_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is missed without a word, so that the first real fault is the one that is logged."""
    with _disk(tmp_path) as disk:
        _put(disk, 1, b"one")
        (path,) = _files(tmp_path)
        path.unlink()
        assert disk.get(_NAME, 1) is None
        assert not caplog.records

        _put(disk, 1, b"one")
        assert b"one" == disk.get(_NAME, 1)
        with no_descriptors():
            assert disk.get(_NAME, 1) is None
        assert ["cannot read"] == [record.getMessage()[:11] for record in caplog.records]


def test_a_block_that_cannot_be_read_for_a_moment_still_counts(tmp_path: Path) -> None:
    """Its file takes room all the while; the block is there again afterwards."""
    with _disk(tmp_path) as disk:
        _put(disk, 1, b"one")
        with no_descriptors():
            assert disk.get(_NAME, 1) is None

        assert _PAGE == disk.used_bytes == _pages(tmp_path) * _PAGE
        assert b"one" == disk.get(_NAME, 1)


def test_a_dataset_that_cannot_be_opened_owns_no_part(rich_url: str, tmp_path: Path) -> None:
    """As when no thread can be started for its store: others may use all of the folder."""
    disk = DiskCache(tmp_path, budget_bytes=1 << 20, observer=Metrics())
    cache = BlockCache(1 << 20, fetch_threads=1, observer=Metrics(), disk=disk)
    with closing(cache), open_dataset(rich_url) as dataset:
        with no_threads(), pytest.raises(RuntimeError, match="thread"):
            ServedDataset("rich", dataset, cache=cache, max_batch_bytes=1 << 20)
        refused = [dataset.servings for dataset in disk._index._datasets.values()]
        served = ServedDataset("rich", dataset, cache=cache, max_batch_bytes=1 << 20)
        opened = [dataset.servings for dataset in disk._index._datasets.values()]
        cache.remove_source(served.source)
        removed = [dataset.servings for dataset in disk._index._datasets.values()]

    assert ([], [1], [0]) == (refused, opened, removed)


def test_a_restarted_server_reads_no_store(rich_url: str, tmp_path: Path) -> None:
    """All blocks come from the folder after a restart; an altered one from the store, once."""
    with running(rich_url, cache_dir=str(tmp_path)) as started:
        assert list(range(RICH_SAMPLES)) == _sample_ids(started)
    count = len(_files(tmp_path))
    assert count > 10
    altered = _files(tmp_path)[3]
    altered.write_bytes(altered.read_bytes()[:-8] + b"altered?")

    with running(rich_url, cache_dir=str(tmp_path)) as started:
        assert list(range(RICH_SAMPLES)) == _sample_ids(started)
        assert (count - 1, 1) == _fetches(started)

    assert count == len(_files(tmp_path))
    assert not altered.read_bytes().endswith(b"altered?")


_FILLED = """
import json, logging, os, sys
from server.cache.test_disk_cache import _fetches, _sample_ids
from support.running import running
logging.basicConfig(level="WARNING", format="LOG %(message)s")
url, folder = sys.argv[1:]
with running(url, cache_dir=folder, cache_bytes=200_000) as started:
    epochs = [_sample_ids(started) for _ in range(2)]
    print(json.dumps({"epochs": epochs, "hits": _fetches(started)[0],
                      "free": os.statvfs(folder).f_bavail}))
"""
# A file system of its own for one process, which needs no rights where user namespaces are on.
_ON_A_SMALL_DISK = 'mount -t tmpfs -o size=128k small "$0" && exec "$@" "$0"'


def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False)
    return not tried.returncode


@pytest.mark.skipif(not _may_mount(), reason="this system gives nobody a file system of his own")
def test_a_full_disk_costs_no_sample(rich_url: str, tmp_path: Path) -> None:
    """A server whose disk fills up says so once; what is there is used, the rest is fetched."""
    python = [sys.executable, "-c", _FILLED, rich_url]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", _ON_A_SMALL_DISK, str(tmp_path), *python],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)

    assert [list(range(RICH_SAMPLES))] * 2 == found["epochs"]
    assert 1 == done.stderr.count("continues without")
    assert found["hits"] > 0
    assert found["free"] < 8


def test_blocks_of_other_layouts_are_kept_too(tmp_path: Path) -> None:
    """Parquet row groups come from the folder after a restart, as they were."""
    table = small_table(RICH_SAMPLES)
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / "x.parquet", row_group_size=100)
    values = []
    for _ in range(2):
        with running(str(tmp_path / "data"), cache_dir=str(tmp_path / "cache")) as started:
            values.append([batch.payload for batch in read(started.channel, _EPOCH).batches])
            fetches = _fetches(started)

    assert values[0] == values[1]
    assert (10, 0) == fetches


def test_a_server_survives_a_broken_folder(
    rich_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing can be written every sample comes all the same."""
    with (
        caplog.at_level(logging.WARNING),
        server_of({"rich": rich_url}, cache_dir=str(tmp_path)) as server,
    ):
        fingerprint = server._catalog.get("rich").dataset.fingerprint
        # A file where the folder of the dataset would be.
        (tmp_path / fingerprint).write_bytes(b"in the way")
        with grpc.insecure_channel(server.address) as channel:
            assert list(range(RICH_SAMPLES)) == _sample_ids(Running(server, channel))
        assert server._cache.disk is not None
        assert server._cache.disk.flush(10)

    assert 1 == sum("continues without" in record.message for record in caplog.records)
    assert b"in the way" == (tmp_path / fingerprint).read_bytes()


def test_a_shard_dataset_is_kept_as_it_is_stored(tmp_path: Path) -> None:
    """The folder holds the stored bytes, compressed as they are, and a header each."""
    url = str(tmp_path / "data")
    manifest = write_dataset(url, small_table(1000), shard_samples=(1000,))
    with running(url, cache_dir=str(tmp_path / "cache")) as started:
        _sample_ids(started)
    files = _files(tmp_path / "cache")

    stored = sum(path.stat().st_size - 48 for path in files)

    assert started.server._catalog.get("rich").dataset.block_count == len(files)
    assert stored <= int(manifest.stored_bytes.sum())
