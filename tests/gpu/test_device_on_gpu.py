"""Batches on a real device. Each test says what it adds to those of the room `device`."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
import torch

from headrace.client import RemoteDataset, Ring, Transport
from headrace.client.device.cuda_copy import CudaCopies
from support.command import serving
from support.datasets import write_dataset
from support.transports import listen_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SAMPLES, WIDTH = 2048, 4096
BUSY_CYCLES = 200_000_000
"""About a tenth of a second of a device's clock."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """32 MiB: sample i is 4096 times the float i."""
    url = str(tmp_path_factory.mktemp("gpu") / "d")
    flat = pa.array(np.repeat(np.arange(SAMPLES, dtype=np.float32), WIDTH))
    table = pa.table(
        {
            "number": pa.array(np.arange(SAMPLES), pa.int64()),
            "x": pa.FixedSizeListArray.from_arrays(flat, WIDTH),
        }
    )
    write_dataset(url, table, shard_samples=[SAMPLES], block_bytes=1 << 20)
    return url


@pytest.fixture(scope="module")
def address(url: str) -> Iterator[str]:
    """A server of them on TCP."""
    with serving({"d": url}) as running:
        yield running.address


def _tensors(batch: object) -> tuple[torch.Tensor, torch.Tensor]:
    assert hasattr(batch, "__getitem__")
    number, x = batch["number"], batch["x"]
    assert isinstance(number, torch.Tensor)
    assert isinstance(x, torch.Tensor)
    return number, x


def test_batches_are_right_while_the_loops_stream_is_busy(address: str) -> None:
    """Adds: real streams. Buffers and device memory are reused under work that lags behind."""
    dataset = RemoteDataset(
        address,
        "d",
        batch_size=64,
        epochs=3,
        device="cuda",
        transport=Transport(prefetch_bytes=4 << 20),
    )
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    seen = 0
    for _ in range(3):
        for batch in dataset:
            number, x = _tensors(batch)
            if seen % 8 == 0:
                _keep_busy(BUSY_CYCLES)
            # Enqueued behind the sleep, so these read long after the batch was handed over, and
            # after the batch itself is gone.
            wrong += (x != number[:, None]).sum()
            seen += 1
            del batch, number, x
    dataset.close()

    assert 3 * SAMPLES // 64 == seen
    assert 0 == int(wrong)


def test_batches_are_right_out_of_a_ring(url: str) -> None:
    """Adds: a ring that is pinned once. Its slots are written again only after their transfers."""
    with listen_for("ring") as listen, serving({"d": url}, listen=listen) as running:
        dataset = RemoteDataset(
            running.address,
            "d",
            batch_size=64,
            epochs=3,
            device="cuda",
            transport=Transport("ring", [Ring(8 << 20)], prefetch_bytes=4 << 20),
        )
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(3):
            for seen, batch in enumerate(dataset):
                number, x = _tensors(batch)
                if seen % 8 == 0:
                    _keep_busy(BUSY_CYCLES)
                wrong += (x != number[:, None]).sum()
        stats = dataset.stats()
        dataset.close()

    assert ("ring", "") == (stats.transport, stats.transport_reason)
    assert stats.transport_batch_count > 3 * SAMPLES // 64 // 2
    assert 0 == int(wrong)


def test_memory_that_is_adopted_is_pinned_until_it_goes() -> None:
    """Adds: shared memory of another process, registered with CUDA, and given back."""
    copies = CudaCopies(torch.device("cuda"))
    mapped = mmap.mmap(-1, 8 << 20)
    for _ in range(2):
        # A second time at the same place, which would fail if the first were still registered.
        memory = np.frombuffer(mapped, np.uint8)
        memory[:] = 7
        copies.adopt(memory)
        assert torch.from_numpy(memory).is_pinned()
        copy = copies.start(memory)
        copy.wait()
        assert 7 * memory.size == int(copy.target.sum(dtype=torch.int64))
        del memory
    mapped.close()


def test_the_loop_does_not_wait_when_its_steps_are_longer_than_the_fetch(address: str) -> None:
    """Adds: overlap. Under 1 % of the time of steps of 50 ms is spent waiting for batches."""
    dataset = RemoteDataset(address, "d", batch_size=64, device="cuda")
    next(iter(dataset))
    torch.cuda.synchronize()
    before, start = dataset.stats().waited_s, time.monotonic()
    for batch in dataset:
        _, x = _tensors(batch)
        x.sum()
        _keep_busy(BUSY_CYCLES // 2)
        torch.cuda.synchronize()
    waited, whole = dataset.stats().waited_s - before, time.monotonic() - start
    dataset.close()

    assert waited < 0.01 * whole


def test_a_transfer_is_as_fast_as_a_pinned_copy_of_torchs_own() -> None:
    """Adds: the rate. The ring's buffers reach nine tenths of torch's pinned rate."""
    size = 64 << 20
    copies = CudaCopies(torch.device("cuda"))
    payload = copies.make_buffer(size)[:size]
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")

    def ours() -> None:
        copies.start(payload).wait()

    def theirs() -> None:
        target.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()

    rates = {step.__name__: size / _seconds(step) for step in (theirs, ours)}

    assert rates["ours"] >= 0.9 * rates["theirs"], rates


def test_to_start_a_transfer_does_not_wait_for_it() -> None:
    """Adds: asynchrony. Starting 256 MiB takes a small part of the time that the copy takes."""
    size = 256 << 20
    copies = CudaCopies(torch.device("cuda"))
    payload = copies.make_buffer(size)[:size]
    copies.start(payload).wait()

    start = time.monotonic()
    copy = copies.start(payload)
    started = time.monotonic()
    copy.wait()
    ended = time.monotonic()

    assert copy.has_ended()
    assert started - start < 0.5 * (ended - start)


def _keep_busy(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call] # torch leaves it so


def _seconds(step: object) -> float:
    """The best of ten, after one to warm up."""
    assert callable(step)
    step()
    found = []
    for _ in range(10):
        start = time.monotonic()
        step()
        found.append(time.monotonic() - start)
    return min(found)
