"""All replicas are restarted one after another under load, and no trainer notices."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.client import Deadlines
from headrace.loadtest import Progress, SwarmResult, SwarmSpec, prove, run_swarm, summarise
from headrace.order import Order, OrderSpec, table_of
from headrace.storage import open_dataset
from support.command import serving
from support.datasets import write_dataset

_REPLICAS, _RANKS, _SAMPLES, _GLOBAL_BATCH = 3, 6, 1200, 48
_STEP_S = 0.04
_SAMPLE_BYTES = 16 << 10
"""So that sockets hold less than a second of a rank's batches: a stream that ends is read to its
end first, and thousands of small batches on their way would outlast the load."""


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def _table() -> pa.Table:
    values = np.random.default_rng(1).integers(0, 256, _SAMPLES * _SAMPLE_BYTES, dtype=np.uint8)
    payload = pa.FixedSizeListArray.from_arrays(pa.array(values), _SAMPLE_BYTES)
    return pa.table({"number": pa.array(np.arange(_SAMPLES)), "payload": payload})


class _Load:
    """A swarm in a thread of its own."""

    def __init__(self, spec: SwarmSpec) -> None:
        self.began, self.results = threading.Event(), list[SwarmResult]()
        self.thread = threading.Thread(target=self._run, args=(spec,), name="test-load")

    def _run(self, spec: SwarmSpec) -> None:
        self.results.append(run_swarm(spec, progress=self._note))

    def _note(self, progress: Progress) -> None:
        if progress.batches >= _RANKS:
            self.began.set()


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    """Each drains, ends with 0 and comes back; the load test's digests are the manifest's."""
    url = str(tmp_path / "ds")
    write_dataset(url, _table(), shard_samples=[_SAMPLES // 4] * 4)
    addresses = tuple(_free_address() for _ in range(_REPLICAS))
    with ExitStack() as stack:
        started_at = time.monotonic()
        replicas = [
            stack.enter_context(serving({"ds": url}, listen=address)) for address in addresses
        ]
        # On a slow machine restarts take longer, and so does the load that has to outlast them.
        load_s = max(10.0, 2 * (time.monotonic() - started_at))
        spec = SwarmSpec(
            targets=addresses,
            dataset="ds",
            sample_count=_SAMPLES,
            order=OrderSpec(seed=3, shuffle_samples=400, unit=_GLOBAL_BATCH),
            global_batch_size=_GLOBAL_BATCH,
            ranks=_RANKS,
            steps=int(load_s / _STEP_S),
            columns=("payload",),
            step_s=_STEP_S,
            # Little enough ahead that every rank is in the middle of its stream.
            prefetch_bytes=1 << 10,
            deadlines=Deadlines(connect_s=60, give_up_s=60),
        )
        load = _Load(spec)
        load.thread.start()
        assert load.began.wait(60)
        codes = []
        for replica, address in zip(replicas, addresses, strict=True):
            replica.process.send_signal(signal.SIGTERM)
            codes.append(replica.process.wait(60))
            stack.enter_context(serving({"ds": url}, listen=address))
        was_under_load = load.thread.is_alive()
        load.thread.join(180)

    (result,) = load.results
    with open_dataset(url) as dataset:
        table = table_of(dataset.stretches())
    proof = prove(result, [Order(spec.order, table)])
    assert was_under_load, "the load ended before the restarts did"
    assert [0] * _REPLICAS == codes
    assert proof.holds, proof
    assert proof.digest == proof.wanted_digest
    assert spec.steps * _RANKS == proof.batches
    # The first replica has two ranks of the six, and sends them away before it ends.
    assert summarise(result).errors.get("DRAINING", 0) >= 2
