"""The anti-toy test: no Python runs for each sample of a batch of small samples."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa
import pytest

from headrace.server._cache import BlockCache
from headrace.server._contents import stream_contents
from headrace.server._datasets import ServedDataset
from headrace.server._kernels import KERNELS
from headrace.server._metrics import Metrics
from headrace.server._stream import BatchStream, StreamLimits
from headrace.server._tally import StreamTally
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset

_SAMPLES = 262_144

_MakeStream: TypeAlias = "Callable[[pb.ReadBatchesRequest], BatchStream]"

# Batches are planned eight at a time, once a stream runs.
_WARM_BATCHES = 15
_COUNTED_BATCHES = 16


@pytest.fixture(scope="module")
def small_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Small samples of all kinds, in few blocks, so that any batch touches every block."""
    url = str(tmp_path_factory.mktemp("small"))
    ids = np.arange(_SAMPLES)
    features = pa.FixedSizeListArray.from_arrays(
        pa.array(np.repeat(ids, 40).astype(np.float32)), 40
    )
    table = pa.table(
        {
            "label": pa.array(ids),
            "features": features,
            "maybe": pa.array([None if i % 5 == 0 else i / 2 for i in ids.tolist()]),
            "text": pa.array([f"sample {i}" for i in ids.tolist()]),
            "ragged": pa.array([[1.5] * (i % 3) for i in ids.tolist()]),
        }
    )
    write_dataset(url, table, shard_samples=(_SAMPLES,), block_bytes=4 << 20)
    return url


@contextmanager
def _serving(url: str) -> Iterator[_MakeStream]:
    """Make streams of a dataset through one cache, without gRPC."""
    cache = BlockCache(1 << 27, fetch_threads=2, observer=Metrics())
    with open_dataset(url) as dataset:
        served = ServedDataset("small", dataset, cache=cache, max_batch_bytes=1 << 27)
        limits = StreamLimits(
            heartbeat_s=5,
            store_timeout_s=30,
            lifetime_s=0,
            max_batch_bytes=1 << 27,
            # So that each batch plans the next one and no more.
            prefetch_bytes=lambda: 0,
        )
        yield lambda request: BatchStream(
            stream_contents(request, served),
            dataset=served.name,
            blocks=served.blocks(cache),
            limits=limits,
            observer=StreamTally(Metrics(), "small", None),
        )
    cache.close()


def _request(batch_size: int, start: pb.EpochStart, *, window: int = 0) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="small",
        order=pb.OrderSpec(seed=1, window=window) if window else pb.OrderSpec(seed=1),
        global_batch_size=batch_size,
        world_size=1,
        epoch_start=start,
        with_ids=True,
    )


def _calls_a_batch(url: str, batch_size: int) -> float:
    """Count the calls, of Python and C functions, that a warm batch takes in the mean."""
    with _serving(url) as make:
        # Behind the small first windows of an epoch.
        stream = make(_request(batch_size, pb.EpochStart(position=_SAMPLES // 2)))
        messages = stream.messages()
        for _ in range(1 + _WARM_BATCHES):
            next(messages)
        calls = _calls_of(messages, _COUNTED_BATCHES)
        messages.close()
    return calls / _COUNTED_BATCHES


def _calls_at(make: _MakeStream, epoch: int, position: int) -> int:
    """Count the calls that the first batch of a stream takes, from its request on."""

    def messages() -> Iterator[bytes]:
        start = pb.EpochStart(epoch=epoch, position=position)
        yield from make(_request(256, start, window=4096)).messages()

    opened = messages()
    calls = _calls_of(opened, 2)
    cast("Generator[bytes]", opened).close()
    return calls


def _calls_of(messages: Iterator[bytes], count: int) -> int:
    calls = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    # What other tests left behind must not be finalised in between.
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        for _ in range(count):
            next(messages)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_calls_do_not_grow_with_the_batch(small_url: str) -> None:
    """A batch of 4,096 samples takes as many calls as one of 64."""
    few = _calls_a_batch(small_url, 64)
    many = _calls_a_batch(small_url, 4096)

    # The varints of a token and of a length move the count by a few calls.
    assert abs(many - few) <= 8


def test_calls_do_not_grow_where_loops_are_compiled(small_url: str) -> None:
    """The same once the compiled kernels are there, which a server loads by itself."""
    KERNELS.load()
    assert KERNELS.wait(120)

    few = _calls_a_batch(small_url, 64)
    many = _calls_a_batch(small_url, 4096)

    assert abs(many - few) <= 8


def test_calls_do_not_grow_with_the_position(small_url: str) -> None:
    """A stream opens at any position of any epoch with as many calls as at another one."""
    with _serving(small_url) as make:
        # What is made once for a dataset, and brings all of its blocks into the cache.
        _calls_at(make, 0, _SAMPLES // 3)
        counts = [
            _calls_at(make, epoch, position)
            for epoch in (0, 10**9)
            for position in (_SAMPLES // 4, _SAMPLES // 2, _SAMPLES - 8192)
        ]

    assert max(counts) <= 1.1 * min(counts), counts
