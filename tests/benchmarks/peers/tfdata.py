"""tf.data service: a dispatcher and a worker in a process of their own, TFRecord files behind.

Records are the raw bytes of a sample, decoded a batch at a time on the worker, which is quicker
than a ``tf.train.Example`` a sample; nothing is compressed. The shuffle buffer holds 16,384 samples
or 64 MiB, whichever is less. The service has no states.
"""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before the import

import tensorflow as tf

from benchmarks.peers.photo import RATIO, SCALE, SIDE
from benchmarks.peers.samples import Samples, load

_START_S = 120.0
_SHUFFLED, _SHUFFLED_BYTES = 16_384, 64 << 20
_SHARDS = 4


def write(samples: Samples, folder: Path) -> None:
    """Write four TFRecord files."""
    place = folder / "tfdata"
    place.mkdir()
    rows = -(-samples.sample_count // _SHARDS)
    for shard in range(_SHARDS):
        with tf.io.TFRecordWriter(str(place / f"{shard}.tfrecord")) as writer:
            for index in range(shard * rows, min((shard + 1) * rows, samples.sample_count)):
                writer.write(samples.raw(index))


class Reader:
    """Starts one service, and reads it as the only consumer."""

    def __init__(self, folder: Path, remote: str) -> None:
        assert not remote
        self.files = folder / "tfdata"
        self._samples = load(folder / "samples")
        self._sample_bytes = len(self._samples.raw(0))
        command = [sys.executable, "-m", "benchmarks.peers.tfdata"]
        self._service = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        assert self._service.stdout is not None
        ready, _, _ = select.select([self._service.stdout], [], [], _START_S)
        self._address = self._service.stdout.readline().strip() if ready else ""
        if not self._address:
            self._service.kill()
            raise RuntimeError(f"the service was not ready within {_START_S:.0f} s")

    def prepare(self) -> None:
        """Nothing is left of an earlier stream."""

    def open(self, workers: int, state: Any) -> _Stream:
        """Describe the pipeline; the service runs it when it is iterated."""
        assert not workers
        assert state is None
        buffered = min(_SHUFFLED, max(1, _SHUFFLED_BYTES // self._sample_bytes))
        paths = sorted(str(path) for path in self.files.glob("*.tfrecord"))
        records = tf.data.TFRecordDataset(paths, num_parallel_reads=2)
        shuffled = records.shuffle(
            buffered
        ).repeat()  # at a job's end the client waits for a second
        if self._samples.kind == "photos":
            shuffled = shuffled.map(_augmented, num_parallel_calls=tf.data.AUTOTUNE)
        batches = shuffled.batch(self._samples.batch_size, drop_remainder=True).map(
            _decoder(self._samples.kind), num_parallel_calls=tf.data.AUTOTUNE
        )
        distribute = tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.OFF,
            service=self._address,
            compression=None,
        )
        return _Stream(batches.apply(distribute).prefetch(tf.data.AUTOTUNE), self._samples)

    def close(self) -> None:
        """End the service."""
        self._service.kill()
        self._service.communicate()


class _Stream:
    def __init__(self, batches: Any, samples: Samples) -> None:
        self._batches = batches.as_numpy_iterator()
        self._epoch_batches = samples.sample_count // samples.batch_size
        self._is_text = samples.kind == "texts"

    def epoch(self) -> Iterator[Mapping[str, Any]]:
        for batch in itertools.islice(self._batches, self._epoch_batches):
            if self._is_text:
                yield {"text": [item.decode() for item in batch["text"]]}
            else:
                yield batch

    def state(self) -> None:
        return None

    def close(self) -> None:
        self._batches = None


def _augmented(content: Any) -> Any:
    """Decode, crop, resize with antialiasing and flip one photograph, all on the worker."""
    shape = tf.io.extract_jpeg_shape(content)
    start, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        tf.zeros((0, 0, 4), tf.float32),
        min_object_covered=0.0,
        aspect_ratio_range=RATIO,
        area_range=SCALE,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.stack([start[0], start[1], size[0], size[1]])
    cropped = tf.image.decode_and_crop_jpeg(content, window, channels=3)
    scaled = tf.image.resize(cropped, (SIDE, SIDE), antialias=True)
    return tf.cast(tf.image.random_flip_left_right(tf.round(scaled)), tf.uint8)


def _decoder(kind: str) -> Any:
    def rows(raw: Any) -> dict[str, Any]:
        flat = tf.io.decode_raw(raw, tf.uint8)
        label = tf.bitcast(flat[:, :8], tf.int64)
        return {"label": label, "x": tf.bitcast(tf.reshape(flat[:, 8:], (-1, 40, 4)), tf.float32)}

    return {
        "rows": rows,
        "images": lambda raw: {"image": raw},
        "photos": lambda pixels: {"image": pixels},
        "tokens": lambda raw: {"tokens": tf.io.decode_raw(raw, tf.int32)},
        "texts": lambda raw: {"text": raw},
    }[kind]


def _serve() -> None:
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print(dispatcher.target, flush=True)
    sys.stdin.read()  # until the other side is gone
    del worker


if __name__ == "__main__":
    _serve()
