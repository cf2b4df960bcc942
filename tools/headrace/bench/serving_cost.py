"""Measure what serving a dataset costs on this machine."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace

from headrace.bench.children import Serving, serving
from headrace.bench.read_batches import Reading, read_batches
from headrace.client import ReadOptions
from headrace.order import OrderSpec
from headrace.storage import OpenDataset

_SETTLE_S = 0.5
"""After a pass the server reads ahead for a moment."""


@dataclass(frozen=True, slots=True)
class ServingCost:
    """What serving a dataset costs on this machine.

    Attributes:
        batch_bytes: Payload of a batch.
        warm_batch_s: Processor time of the server for a batch from its cache, in seconds.
        cold_byte_s: Processor time for reading, checking and decoding a stored byte, in seconds.
        cold_bytes_per_s: Stored bytes a second that one stream read from the store.
        first_batch_ms: Milliseconds until the first batch of a job whose data is not cached.
    """

    batch_bytes: float
    warm_batch_s: float
    cold_byte_s: float
    cold_bytes_per_s: float
    first_batch_ms: float


def measure_serving(
    url: str,
    order: OrderSpec,
    dataset: OpenDataset,
    *,
    batch_size: int,
    seconds: float,
    missing_as_null: bool = False,
) -> ServingCost:
    """Serve a dataset in a process of its own, and measure what one rank of the job costs.

    Args:
        url: The dataset.
        order: The order of the job.
        dataset: The dataset, opened.
        batch_size: Samples per batch of a rank.
        seconds: The duration of each of four passes.
        missing_as_null: Whether columns that some files lack are null there.

    Raises:
        HeadraceError: It cannot be served or read.
    """
    size, served = batch_size, {"url": url, "source": {"missing_as_null": missing_as_null}}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        json.dump({"datasets": {"planned": served}}, config)
        config.flush()
        with serving({}, f"--config={config.name}", stderr=subprocess.DEVNULL) as server:
            # In the order of storage, so that what was read is known.
            stored = ReadOptions("planned", OrderSpec(shuffle=False, unit=size), size, end_epoch=1)
            cold, cold_s = _timed(server, stored, seconds=seconds)
            _, again_s = _timed(server, stored, seconds=seconds, max_batches=cold.batches)
            wanted = ReadOptions("planned", replace(order, unit=size), size, end_epoch=1)
            first, _ = _timed(server, wanted, seconds=seconds)
            warm, warm_s = _timed(server, wanted, seconds=seconds, max_batches=first.batches)
    stored_bytes = cold.samples * dataset.stored_bytes / dataset.sample_count
    return ServingCost(
        warm.payload_bytes / warm.batches,
        warm_s / warm.batches,
        max(0.0, cold_s - again_s) / stored_bytes,
        stored_bytes / cold.seconds,
        cold.first_s * 1e3,
    )


def _timed(
    server: Serving, options: ReadOptions, *, seconds: float, max_batches: int = 1 << 40
) -> tuple[Reading, float]:
    """Return what was read, and the processor time of the server."""
    before = server.processor_s()
    found = read_batches([server.address], options, seconds=seconds, max_batches=max_batches)
    time.sleep(_SETTLE_S)
    return found, server.processor_s() - before
