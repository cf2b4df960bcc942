"""Generate four kinds of samples, which do not compress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import DatasetExistsError
from headrace.storage import ShardWriter, Store, check_mode, commit_dataset, open_store

_SHARD_BYTES = 16 << 20
_IMAGE_BYTES = 64 << 10
_TEXT_BYTES = 400


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of samples.

    Attributes:
        name: The name on the command line.
        batch_size: Samples per batch, for batches of about 1 MiB, or 16 MiB of images.
        sample_bytes: The approximate raw size of a sample in bytes.
        make: Returns a table with a given number of samples.
    """

    name: str
    batch_size: int
    sample_bytes: int
    make: Callable[[int, np.random.Generator], pa.Table]

    def write(self, url: str, *, raw_bytes: int) -> int:
        """Write a dataset of at least 32 batches.

        Args:
            url: Where to write the dataset.
            raw_bytes: The approximate raw size of the dataset in bytes.

        Returns:
            The number of samples.
        """
        count = max(32 * self.batch_size, raw_bytes // self.sample_bytes)
        shard_samples = max(1, min(count, _SHARD_BYTES // self.sample_bytes))
        generator = np.random.default_rng(7)
        store = open_store(url)
        shards, schema = [], None
        try:
            _refuse_used(store)
            for number, start in enumerate(range(0, count, shard_samples)):
                table = self.make(min(shard_samples, count - start), generator)
                schema = table.schema
                with ShardWriter(store, f"{number:05d}.arrow", schema=schema) as writer:
                    for batch in table.to_batches():
                        writer.append(batch)
                    shards.append(writer.close())
            assert schema is not None
            commit_dataset(store, schema, shards)
        finally:
            store.close()
        return count


def _refuse_used(store: Store) -> None:
    try:
        check_mode(store, "error")
    except DatasetExistsError as error:
        raise DatasetExistsError(
            f"{store.url} already contains a dataset; give --url another folder", url=store.url
        ) from error


def _rows(count: int, generator: np.random.Generator) -> pa.Table:
    features = pa.array(generator.random(count * 40, dtype=np.float32))
    labels = pa.array(generator.integers(0, 10, count))
    return pa.table({"x": pa.FixedSizeListArray.from_arrays(features, 40), "label": labels})


def _images(count: int, generator: np.random.Generator) -> pa.Table:
    return pa.table({"image": _binaries([_IMAGE_BYTES] * count, generator, pa.binary())})


def _tokens(count: int, generator: np.random.Generator) -> pa.Table:
    tokens = pa.array(generator.integers(0, 50_000, count * 2048, dtype=np.int32))
    return pa.table({"tokens": pa.FixedSizeListArray.from_arrays(tokens, 2048)})


def _texts(count: int, generator: np.random.Generator) -> pa.Table:
    lengths = generator.integers(_TEXT_BYTES // 2, _TEXT_BYTES * 3 // 2, count)
    return pa.table({"text": _binaries(lengths.tolist(), generator, pa.string())})


def _binaries(
    lengths: list[int], generator: np.random.Generator, kind: pa.DataType
) -> pa.Array[Any]:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    low, high = (32, 127) if pa.types.is_string(kind) else (0, 256)
    values = generator.integers(low, high, int(offsets[-1]), dtype=np.uint8)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(values.tobytes())]
    return pa.Array.from_buffers(kind, len(lengths), buffers)


WORKLOADS = (
    Workload("rows", 4096, 168, _rows),
    Workload("images", 256, _IMAGE_BYTES, _images),
    Workload("tokens", 32, 8192, _tokens),
    Workload("texts", 1024, _TEXT_BYTES, _texts),
)
