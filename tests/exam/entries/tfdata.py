"""tf.data service: TFRecord files behind a dispatcher and a worker, coordinated reads of all ranks.

Coordinated reads: tensorflow.org/api_docs/python/tf/data/experimental/service/distribute
Fault tolerance: .../service/DispatcherConfig, ``fault_tolerant_mode``
States: tensorflow.org/guide/data#iterator_checkpointing; the service has none.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from exam.entry import Batch, NotOffered, Shards
from exam.job import KIND, SAMPLES, Job
from exam.ranks import free_port

_SHUFFLED = 100
_ID_BYTES = 8


def write(folder: Path, shards: Shards) -> None:
    """Write a TFRecord file a shard."""
    folder.mkdir()
    for shard in shards:
        with tf.io.TFRecordWriter(str(folder / f"{shard[0][0]:08d}.tfrecord")) as writer:
            for sample_id, value in shard:
                writer.write(sample_id.to_bytes(_ID_BYTES, "little") + value)


def append(folder: Path, shards: Shards) -> None:
    """Say that there is none."""
    del folder, shards
    raise NotOffered("a run that has begun cannot be resumed")


def serve(folders: Sequence[str], port: int) -> None:
    """Run a dispatcher in its fault-tolerant mode, and a worker."""
    service = tf.data.experimental.service
    # What those before these two, which were killed, have kept: a journal, and the worker's port.
    place = Path(tempfile.gettempdir()) / f"{Path(folders[0]).parent.name}-{port}"
    place.mkdir(exist_ok=True)
    kept = place / "port"
    if not kept.exists():
        kept.write_text(str(free_port()))
    dispatcher = service.DispatchServer(
        service.DispatcherConfig(port=port, work_dir=str(place), fault_tolerant_mode=True)
    )
    worker = service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=f"127.0.0.1:{port}",
            worker_address=f"127.0.0.1:{kept.read_text()}",
            port=int(kept.read_text()),
        )
    )
    threading.Event().wait()
    del dispatcher, worker


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open the pipeline as one of its consumers; the first of them starts it."""
    del epoch, states
    parts = [_part(job, folder) for folder in job.folders]
    dataset = parts[0]
    if len(parts) > 1:
        dataset = tf.data.Dataset.sample_from_datasets(
            parts, [1 / len(parts)] * len(parts), seed=job.seed
        )
    service = tf.data.experimental.service
    if KIND == "images":
        dataset = dataset.map(_decoded, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(job.batch, drop_remainder=True).repeat()
    dataset = dataset.apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.OFF,
            service=f"grpc://{job.address}",
            job_name=Path(job.states).name,
            consumer_index=job.rank,
            num_consumers=job.world,
        )
    )
    steps = len(parts) * SAMPLES // (job.batch * job.world)
    return _Stream(dataset.as_numpy_iterator(), steps)


def _part(job: Job, folder: str) -> Any:
    paths = sorted(str(path) for path in Path(folder).glob("*.tfrecord"))
    if not job.shuffle:
        return tf.data.TFRecordDataset(paths)
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=job.seed)
    return files.flat_map(tf.data.TFRecordDataset).shuffle(_SHUFFLED, seed=job.seed)


def _decoded(record: Any) -> Any:
    """Decode an image on the worker."""
    sample_id = tf.strings.substr(record, 0, _ID_BYTES)
    return sample_id, tf.io.decode_jpeg(tf.strings.substr(record, _ID_BYTES, -1), channels=3)


class _Stream:
    def __init__(self, batches: Any, steps: int) -> None:
        self._batches = batches
        self._steps = steps

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, whose end coordinated reads do not mark."""
        del number
        for batch in itertools.islice(self._batches, self._steps):
            if KIND == "images":
                yield [int.from_bytes(each, "little") for each in batch[0]], batch[1]
                continue
            yield (
                [int.from_bytes(each[:_ID_BYTES], "little") for each in batch],
                [each[_ID_BYTES:] for each in batch],
            )

    def state(self) -> Any:
        return None
