"""Ray Data: Parquet files split among the ranks of a job by ``streaming_split``.

Splits: docs.ray.io/en/latest/data/iterating-over-data.html, "Splitting datasets for distributed
parallel training"; order: .../data/shuffling-data.html. Rank 0 starts Ray, as a driver does, and
hands the splits out. Open-source Ray has no state of them; Anyscale's runtime has one:
docs.anyscale.com/rayturbo/mid-epoch-resumption.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

os.environ["RAY_AUTH_MODE"] = "disabled"  # before the import: tokens are for other machines

import ray
import ray.data

from exam.entry import Batch, NotOffered, Shards
from exam.job import KIND, Job
from exam.pictures import stacked

_SHUFFLED = 100
_START_S, _END_S = 120.0, 30.0


def write(folder: Path, shards: Shards) -> None:
    """Write a Parquet file a shard."""
    folder.mkdir()
    for shard in shards:
        ids, values = zip(*shard, strict=True)
        table = pa.table({"id": pa.array(ids), "x": pa.array(values)})
        pq.write_table(table, folder / f"{shard[0][0]:08d}.parquet")


def append(folder: Path, shards: Shards) -> None:
    """Say that there is none."""
    del folder, shards
    raise NotOffered("a run that has begun cannot be resumed")


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Take this rank's split."""
    del epoch, states
    place = Path(job.states) / "ray"
    if job.rank:
        _wait(place.exists, _START_S)
        ray.init(address=place.read_text(), namespace="exam", log_to_driver=False)
        splits = ray.get(ray.get_actor("splits").all.remote())
    else:
        splits = _split(job)
        found = place.with_suffix(".part")
        found.write_text(ray.get_runtime_context().gcs_address)
        found.replace(place)
    return _Stream(job, splits[job.rank])


def _split(job: Job) -> list[Any]:
    ray.init(address="local", namespace="exam", include_dashboard=False, log_to_driver=False)
    options = ray.data.DataContext.get_current().execution_options
    options.preserve_order = True  # so that runs agree
    order = ray.data.FileShuffleConfig(seed=job.seed) if job.shuffle else None
    first, *others = (_read(job, folder, order) for folder in job.folders)
    dataset = first.mix(*others) if others else first
    if KIND == "images":
        dataset = dataset.map_batches(_decoded, batch_size=job.batch)
    splits = dataset.streaming_split(job.world, equal=True)
    holder = ray.remote(num_cpus=0)(_Splits).options(name="splits", lifetime="detached")
    ray.get(holder.remote(splits).all.remote())
    return [*splits]


def _read(job: Job, folder: str, order: Any) -> Any:
    files = job.files(folder, "*.parquet") if job.names else folder
    return ray.data.read_parquet(files, shuffle=order)


def _decoded(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "x": stacked(batch["x"])}


class _Splits:
    def __init__(self, splits: Sequence[Any]) -> None:
        self._splits = [*splits]

    def all(self) -> list[Any]:
        return self._splits


class _Stream:
    def __init__(self, job: Job, split: Any) -> None:
        self._job = job
        self._split = split

    def epoch(self, number: int) -> Iterator[Batch]:
        job = self._job
        shuffled: dict[str, int] = {}
        if job.shuffle:
            shuffled = {"local_shuffle_buffer_size": _SHUFFLED, "local_shuffle_seed": job.seed}
        for batch in self._split.iter_batches(
            batch_size=job.batch, batch_format="numpy", drop_last=True, **shuffled
        ):
            yield batch["id"].tolist(), batch["x"]
        self._leave_together(number)

    def _leave_together(self, number: int) -> None:
        """Let rank 0 end last, since Ray ends with it."""
        states = Path(self._job.states)
        (states / f"{self._job.rank}.read-{number}").touch()
        if not self._job.rank:
            _wait(lambda: len([*states.glob(f"*.read-{number}")]) == self._job.world, _END_S)

    def state(self) -> Any:
        return None


def _wait(holds: Callable[[], bool], within_s: float) -> None:
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"the other ranks did not follow within {within_s:.0f} s")
        time.sleep(0.05)
