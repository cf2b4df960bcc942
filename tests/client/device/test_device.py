"""Buffers of the ring return when their copy has ended; the batch on the device is the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.client import BatchEvent, Order, RaggedColumn, RemoteDataset, Transport
from headrace.client.batch.columns import BytesColumn, StringColumn
from headrace.client.device.cuda_copy import copies_to
from headrace.client.device.device_ring import DeviceRing
from headrace.client.wire.buffers import aligned
from headrace.client.wire.payload_layout import ColumnView
from headrace.errors import BadArgumentError
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.running import RICH_SAMPLES, Running, running
from support.served import rich_table


class ManualCopy:
    """A copy that ends when it is told to."""

    def __init__(self, payload: NDArray[np.uint8]) -> None:
        """Begin, and copy nothing yet."""
        self.source = payload
        self.target = torch.zeros(payload.size, dtype=torch.uint8)
        self.ended = threading.Event()
        self.waited = False

    def end(self) -> None:
        """Copy what the buffer holds now."""
        self.target.copy_(torch.from_numpy(self.source))
        # The engine keeps no hold on the buffer beyond the copy.
        self.source = np.empty(0, np.uint8)
        self.ended.set()

    def has_ended(self) -> bool:
        """Say so."""
        return self.ended.is_set()

    def hand_over(self) -> None:
        """Nothing is to be awaited on this thread."""

    def wait(self) -> None:
        """End it now, if it has not ended."""
        if not self.has_ended():
            self.waited = True
            self.end()


class ManualCopies:
    """A way to a device that is as slow as it is told to be."""

    def __init__(self) -> None:
        """Begin with nothing under way."""
        self.started: list[ManualCopy] = []
        self.made: list[int] = []

    def make_buffer(self, size: int) -> NDArray[np.uint8]:
        """Make plain memory, and count it."""
        self.made.append(size)
        return aligned(size)

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Have nothing to prepare."""

    def start(self, payload: NDArray[np.uint8]) -> ManualCopy:
        """Begin a copy."""
        self.started.append(ManualCopy(payload))
        return self.started[-1]


def _event(ring: DeviceRing, value: int) -> BatchEvent:
    payload = ring.take(64)
    payload[:] = value
    header = pb.BatchHeader(payload_bytes=64, sample_count=64)
    return BatchEvent(header, {"x": ColumnView(pb.COLUMN_KIND_TENSOR, payload)}, payload)


def test_a_buffer_is_not_written_before_its_copy_has_ended() -> None:
    """A slow device makes the ring larger, and never a batch wrong."""
    copies = ManualCopies()
    ring = DeviceRing(copies, idle_bytes=1 << 20)
    moved = [ring.move(_event(ring, value)) for value in range(3)]
    for copy in copies.started:
        copy.end()

    assert [0, 1, 2] == [int(event.copy.target[63]) for event in moved]
    assert 3 == len(copies.made)


def test_a_steady_run_makes_no_more_buffers() -> None:
    """Each copy that has ended gives its buffer back, though the batches are all kept."""
    copies = ManualCopies()
    ring = DeviceRing(copies, idle_bytes=1 << 20)
    kept = []
    for value in range(20):
        kept.append(ring.move(_event(ring, value)))
        copies.started[-1].end()

    assert list(range(20)) == [int(event.copy.target[0]) for event in kept]
    assert 1 == len(copies.made)


def test_close_waits_for_the_copies_under_way() -> None:
    """Memory that a device still reads is not freed."""
    copies = ManualCopies()
    ring = DeviceRing(copies, idle_bytes=1 << 20)
    ring.move(_event(ring, 1))
    ring.move(_event(ring, 2))
    copies.started[0].end()

    ring.close()

    assert [False, True] == [copy.waited for copy in copies.started]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of samples with a column of every kind."""
    url = str(tmp_path_factory.mktemp("rich") / "d")
    write_dataset(url, rich_table(RICH_SAMPLES), shard_samples=(600, 400), block_bytes=16_384)
    with running(url) as started:
        yield started


def _content(dataset: RemoteDataset) -> list[dict[str, object]]:
    batches = list(dataset)
    dataset.close()
    # All batches are alive together, so none may share its memory with another.
    return [{name: _plain(value) for name, value in batch.items()} for batch in batches]


def _plain(value: torch.Tensor | BytesColumn | StringColumn | RaggedColumn) -> object:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.cpu().numpy().tobytes()
    if isinstance(value, RaggedColumn):
        items = [None if item is None else item.tolist() for item in value]
        return value.values.dtype, value.values.tolist(), value.offsets.tolist(), items
    return list(value)


def test_batches_over_the_ring_are_the_same_in_every_column(rich: Running) -> None:
    """Tensors, ragged columns, strings, bytes and nulls, over several epochs' worth of buffers."""
    address = rich.server.address
    received = _content(RemoteDataset(address, "rich", batch_size=64, order=Order(with_ids=True)))

    moved = _content(
        RemoteDataset(
            address,
            "rich",
            batch_size=64,
            device="cpu",
            transport=Transport(prefetch_bytes=1 << 20),
            order=Order(with_ids=True),
        )
    )

    assert received == moved
    assert 15 == len(moved)


def test_what_stands_beside_the_columns_is_on_the_device_too(rich: Running) -> None:
    """Sample ids and pads; a batch may be changed like any other."""
    dataset = RemoteDataset(
        rich.server.address,
        "rich",
        batch_size=300,
        end="pad",
        device="cpu",
        order=Order(with_ids=True),
    )
    batch = list(dataset)[-1]
    dataset.close()
    numbers = batch["number"]
    assert batch.sample_ids is not None
    assert isinstance(numbers, torch.Tensor)

    assert torch.equal(numbers, batch.sample_ids)
    assert 200 == int(batch.is_pad.sum())
    numbers.zero_()


@pytest.mark.parametrize("device", ["tpu", "meta", ""])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    """Before anything travels."""
    with pytest.raises(BadArgumentError, match="device"):
        RemoteDataset("127.0.0.1:1", "d", batch_size=4, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_machine_without_cuda_says_so() -> None:
    """The message names the way out."""
    with pytest.raises(BadArgumentError, match="device='cpu'"):
        copies_to(torch.device("cuda"))
