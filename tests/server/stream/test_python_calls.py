"""The anti-toy test: no Python runs for each sample of a batch of small samples."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from headrace.order import MixtureDataset, MixtureSpec, OrderSpec
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.order_stages.mixtures.served_mixture import ServedMixture
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import small_table, write_dataset
from support.streams import Streams, streams_of

_SAMPLES = 262_144

# All kinds of columns, and 4,096 samples of them have little more than a quarter of a MiB.
_NARROW = ("label", "maybe", "text", "ragged")

# Batches are planned eight at a time, once a stream runs, and made up to eight at a time.
_WARM_BATCHES = 15
_COUNTED_BATCHES = 16

# Of Python and C functions, a batch of 64 samples and one of 4,096 with all columns; 86 and 146 of
# them are measured.
_MOST_CALLS = (88, 149)


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


def _request(
    batch_size: int, start: pb.EpochStart, *, shuffle_samples: int = 0
) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="small",
        order=pb.OrderSpec(seed=1, shuffle_samples=shuffle_samples),
        global_batch_size=batch_size,
        world_size=1,
        epoch_start=start,
        with_ids=True,
    )


def _calls_a_batch(url: str, batch_size: int, columns: Sequence[str] = ()) -> float:
    """Count the calls, of Python and C functions, that a warm batch takes in the mean."""
    with streams_of(url) as streams:
        # Behind the small first windows of an epoch.
        request = _request(batch_size, pb.EpochStart(position=_SAMPLES // 2))
        request.columns.extend(columns)
        messages = streams.sent(request)
        for _ in range(1 + _WARM_BATCHES):
            next(messages)
        calls = _calls_of(messages, _COUNTED_BATCHES)
        messages.close()
    return calls / _COUNTED_BATCHES


def _calls_at(streams: Streams, epoch: int, position: int) -> int:
    """Count the calls that the first batch of a stream takes, from its request on."""

    def messages() -> Iterator[bytes]:
        start = pb.EpochStart(epoch=epoch, position=position)
        yield from streams.sent(_request(256, start, shuffle_samples=4096))

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


@pytest.mark.parametrize(("columns", "many_samples"), [(_NARROW, 4096), ((), 1024)])
def test_calls_do_not_grow_with_the_batch(
    small_url: str, columns: Sequence[str], many_samples: int
) -> None:
    """A batch of 4,096 samples takes as many calls as one of 64.

    Several batches are made together, as many as have 2 MiB; here 7 or 8 of either size.
    """
    few = _calls_a_batch(small_url, 64, columns)
    many = _calls_a_batch(small_url, many_samples, columns)

    assert abs(many - few) <= 8


def test_a_batch_takes_few_calls_where_several_are_made_together(small_url: str) -> None:
    """A batch that is made with others takes a bounded number of calls, its planning included.

    With two of a megabyte at a time it is twice what it is with eight.
    """
    calls = [_calls_a_batch(small_url, batch_size) for batch_size in (64, 4096)]

    assert [True, True] == [
        count <= most for count, most in zip(calls, _MOST_CALLS, strict=True)
    ], calls


def test_a_batch_of_many_datasets_takes_few_calls(tmp_path: Path) -> None:
    """A batch with samples of some 40 of 64 datasets takes 3 times the calls of one, at most.

    It was 13 times as long as each dataset was asked for its own blocks.
    """
    names = [f"d{index:02d}" for index in range(64)]
    url = str(tmp_path)
    write_dataset(url, small_table(1000), shard_samples=[1000], block_bytes=1 << 20)
    request = _request(64, pb.EpochStart())
    with streams_of(url) as streams, open_dataset(url) as dataset:
        members = [
            ServedDataset(name, dataset, cache=streams.cache, max_batch_bytes=1 << 27)
            for name in names
        ]
        spec = MixtureSpec(
            tuple(MixtureDataset(name, dataset.fingerprint) for name in names),
            OrderSpec(seed=1),
        )
        # Which is served as a dataset is.
        mixture = cast("ServedDataset", ServedMixture(members, spec))
        mixed = Streams(streams.cache, mixture)
        messages = mixed.sent(request)
        for _ in range(1 + _WARM_BATCHES):
            next(messages)
        calls = _calls_of(messages, _COUNTED_BATCHES) / _COUNTED_BATCHES
        messages.close()

    assert calls <= 3 * _MOST_CALLS[0], calls


def test_calls_do_not_grow_with_the_position(small_url: str) -> None:
    """A stream opens at any position of an open epoch with as many calls as at another one."""
    with streams_of(small_url) as streams:
        places = [
            (epoch, position)
            for epoch in (0, 10**9)
            for position in (_SAMPLES // 4, _SAMPLES // 2, _SAMPLES - 8192)
        ]
        # What is made once for a part of an epoch, and brings all blocks into the cache.
        for epoch, position in places:
            _calls_at(streams, epoch, position + 1024)
        counts = [_calls_at(streams, epoch, position) for epoch, position in places]

    assert max(counts) <= 1.1 * min(counts), counts
