"""A real process killed by a real signal at every step: the dataset is the old one or the new."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.storage import collect_garbage, open_dataset, open_store, plan_gc, verify_blocks
from support import killed_writer
from support.s3 import S3

_OLD = killed_writer.OLD_SAMPLES
_NEW = killed_writer.OLD_SAMPLES + killed_writer.NEW_SAMPLES


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.long)])
def test_killed_anywhere_the_dataset_is_whole(s3: S3, tmp_path: Path, kind: str) -> None:
    """SIGKILL before each operation in turn leaves what was there, whole.

    The last operation removes the writer's note, after the commit. What the dead left is found by
    a collection, and nothing else is.
    """
    url = s3.url("killed") if kind == "s3" else str(tmp_path)
    done = subprocess.run(
        [sys.executable, killed_writer.__file__, url],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    last = int(done.stdout)

    counts = [_count(f"{url}/{fatal}") for fatal in range(1, last + 1)]
    for fatal in range(1, last + 1):
        _collect(f"{url}/{fatal}")

    # At `last` the writer lives, and at the one before it is killed before it removes its note.
    assert [_OLD] * (last - 2) + [_NEW] * 2 == counts
    assert last > killed_writer.NEW_SAMPLES + 6  # parts, close, reads, note, two tables, pointer


def _count(url: str) -> int:
    with open_dataset(url) as dataset:
        assert [] == list(verify_blocks(dataset, threads=2))
        return dataset.sample_count


def _collect(url: str) -> None:
    store = open_store(url)
    collect_garbage(store, plan_gc(store, now_s=2**40))
    left = [name for name in store.list() if name != "headrace.json"]
    with open_dataset(url) as dataset:
        assert dataset.shard_count + 2 == len(left)
    assert [] == list(store.list_unfinished())
    store.close()
