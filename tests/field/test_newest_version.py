"""A private server that lives on: a new run reads the newest version, and a run reads one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs forget it

from headrace.client import NumpyDataset, RemoteDataset
from headrace.storage import collect_garbage, open_store, plan_gc
from support.private import end_servers, server_pids
from support.shards import numbered_batch, write_shards_of

_BEFORE, _AFTER = 97, 597
_RANK = Path(__file__).parents[1] / "support" / "one_rank.py"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of the test's own; its servers end with the test."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    end_servers(folder)


@pytest.fixture
def url(tmp_path: Path, runtime: Path) -> str:
    """A dataset of `_BEFORE` samples."""
    assert runtime.is_dir()
    url = str(tmp_path / "d")
    write_shards_of(url, [numbered_batch(0, _BEFORE)], stem="a")
    return url


def _append(url: str) -> None:
    write_shards_of(url, [numbered_batch(_BEFORE, _AFTER)], stem="b", mode="append")


def _count(dataset: RemoteDataset) -> int:
    return sum(batch.sample_count for batch in dataset)


def _dataset(url: str, **options: object) -> RemoteDataset:
    wanted = {"batch_size": 10, "end": "uneven", "epochs": 1, **options}
    return RemoteDataset(None, url, **wanted)  # type: ignore[arg-type]


def test_a_new_run_reads_what_was_appended(url: str, runtime: Path) -> None:
    """The server of the run before still lives and still has streams, and is the new run's too."""
    with closing(_dataset(url)) as old, closing(_dataset(url)) as reading:
        assert _BEFORE == _count(old)
        next(iter(reading))
        servers = server_pids(runtime)
        _append(url)

        with closing(_dataset(url)) as new:
            assert _AFTER == _count(new)
            assert servers == server_pids(runtime)
    arrays = NumpyDataset(None, url, batch_size=10, end="uneven", epochs=1)
    with closing(arrays):
        assert _AFTER == sum(len(next(iter(batch.values()))) for batch in arrays)


def test_a_new_run_looks_again_at_a_layout_without_versions(tmp_path: Path, runtime: Path) -> None:
    """A file that is added is the new run's, and not that of the run that is under way."""
    folder = tmp_path / "parquet"
    folder.mkdir()
    pq.write_table(pa.table({"id": range(_BEFORE)}), folder / "a.parquet")
    with closing(_dataset(str(folder), epochs="same")) as old:
        assert _BEFORE == _count(old)
        servers = server_pids(runtime)
        pq.write_table(pa.table({"id": range(_BEFORE, _AFTER)}), folder / "b.parquet")

        with closing(_dataset(str(folder))) as new:
            assert _AFTER == _count(new)
        assert _BEFORE == _count(old)
        assert servers == server_pids(runtime)


def test_a_run_reads_one_version(url: str, runtime: Path) -> None:
    """A dataset that was begun, its copies and its next loops stay with what they began with."""
    del runtime
    with closing(_dataset(url, epochs="same")) as dataset:
        assert _BEFORE == _count(dataset)
        _append(url)

        assert _BEFORE == _count(dataset)
        with closing(pickle.loads(pickle.dumps(dataset))) as copy:
            assert _BEFORE == _count(copy)


def test_a_run_reads_one_version_after_its_server_has_ended(url: str, runtime: Path) -> None:
    """A second loop, on another server, reads what the first one did."""
    with closing(_dataset(url, epochs="same")) as dataset:
        assert _BEFORE == _count(dataset)
        dataset.close()
        end_servers(runtime)
        _append(url)

        assert _BEFORE == _count(dataset)


def test_a_version_that_is_gone_is_an_error(url: str, runtime: Path) -> None:
    """If gc has removed what a run began with, its next loop is refused, not served another."""
    with closing(_dataset(url, epochs="same")) as dataset:
        assert _BEFORE == _count(dataset)
        dataset.close()
        end_servers(runtime)
        _append(url)
        store = open_store(url)
        collect_garbage(store, plan_gc(store, older_than_s=0, now_s=2**40))

        with pytest.raises(Exception, match="does not have that version"):
            _count(dataset)


def test_a_mixture_reads_the_newest_versions(url: str, runtime: Path, tmp_path: Path) -> None:
    """Each of its datasets is the newest for a new run."""
    del runtime
    other = str(tmp_path / "other")
    write_shards_of(other, [numbered_batch(0, 50)], stem="a")

    def length() -> int:
        with closing(RemoteDataset(None, [(url, 1.0), (other, 1.0)], batch_size=1)) as mixture:
            return len(mixture)

    before = length()
    _append(url)
    write_shards_of(other, [numbered_batch(50, 500)], stem="b", mode="append")

    assert length() > 2 * before


@pytest.mark.parametrize("machines", [1, pytest.param(2, marks=pytest.mark.long)])
def test_ranks_on_both_sides_of_an_append_read_one_version(
    url: str, runtime: Path, tmp_path: Path, machines: int
) -> None:
    """The rank that opens later reads what the first one does; the next run reads the rest.

    Ranks on two machines have a server each, and agree through the store of their launcher.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    runtimes = [runtime, runtime if machines == 1 else tmp_path / "b"]
    runtimes[1].mkdir(exist_ok=True)

    def rank(number: int) -> subprocess.Popen[str]:
        launched = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "RANK": str(number),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": str(2 // machines),
            "XDG_RUNTIME_DIR": str(runtimes[number]),
        }
        return subprocess.Popen(
            [sys.executable, str(_RANK), url],
            env={**os.environ, **launched},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def counts_of(job: list[subprocess.Popen[str]], at: int) -> int:
        """Let both ranks read their dataset number ``at``, with an append in between if it is 0."""
        found = []
        for process in job:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("read\n")
            process.stdin.flush()
            found.append(int(process.stdout.readline()))
            if at == 0 and len(found) == 1:
                _append(url)
        return sum(found)

    job = [rank(0), rank(1)]
    try:
        first, second = counts_of(job, 0), counts_of(job, 1)
    finally:
        for process in job:
            process.communicate(timeout=60)
        end_servers(runtimes[1])

    assert (_BEFORE, _AFTER) == (first, second)


def test_columns_are_those_of_the_new_version(url: str, runtime: Path) -> None:
    """A dataset that was written anew with other columns is the new run's."""
    del runtime
    with closing(_dataset(url)) as old:
        assert _BEFORE == _count(old)
    batch = pa.RecordBatch.from_pydict({"other": list(range(30))})
    write_shards_of(url, [batch], stem="c", mode="overwrite")

    with closing(_dataset(url)) as new:
        assert {"other"} == set(next(iter(new)))
