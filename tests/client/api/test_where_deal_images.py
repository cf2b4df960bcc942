"""A filter, even dealing and augmented images in one run: each holds as it does alone.

How it could go wrong: lengths or keys of the kept samples taken by their place in the dataset, so
that costs or crops are another sample's; a dealing or pixels that follow the world size or a
resume; a global batch that is not the one in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from headrace.cli.stored.row_counter import row_counter
from headrace.client import (
    Batch,
    Deadlines,
    DecodeImage,
    Order,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RemoteDataset,
    Selection,
    Sharding,
    Transport,
)
from headrace.server import Server
from headrace.storage import RowOptions, index_packing
from support.datasets import write_dataset
from support.images import noise_bytes
from support.running import server_of

_SAMPLES = 240
_LENGTHS = np.random.default_rng(5).integers(1, 200, _SAMPLES)
_WHERE = "label < 3"
_GLOBAL = 24
_CROP = DecodeImage("image", transforms=[RandomResizedCrop(8), RandomHorizontalFlip()])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Photographs with tokens of known lengths and one of five labels."""
    url = str(tmp_path_factory.mktemp("d"))
    table = pa.table(
        {
            "image": [noise_bytes(number) for number in range(_SAMPLES)],
            "tokens": pa.array([[1] * length for length in _LENGTHS], pa.list_(pa.int32())),
            "label": [number % 5 for number in range(_SAMPLES)],
        }
    )
    write_dataset(url, table, shard_samples=[100, 140], block_bytes=4096)
    index_packing(url, RowOptions(256), count_rows=row_counter())
    with server_of({"d": url}) as running:
        yield running


def _run(
    server: Server, rank: int, world: int, *, deal: Any, where: str | None = _WHERE
) -> RemoteDataset:
    return RemoteDataset(
        server.address,
        Selection("d", where=where),
        batch_size=_GLOBAL // world,
        seed=8,
        stages=[_CROP],
        columns=["image", "label"],
        end="uneven",
        epochs=2,
        rank=rank,
        world_size=world,
        sharding=Sharding(deal=deal),
        order=Order(with_ids=True),
        transport=Transport(deadlines=Deadlines(connect_s=10, give_up_s=10)),
    )


def _pixels(batches: Iterable[Batch]) -> list[dict[int, bytes]]:
    """Return the pixels of each batch's samples."""
    seen = []
    for batch in batches:
        assert batch.sample_ids is not None
        images, labels = batch["image"], batch["label"]
        assert isinstance(images, torch.Tensor)
        assert isinstance(labels, torch.Tensor)
        ids = batch.sample_ids.tolist()
        own = {sample: images[at].numpy().tobytes() for at, sample in enumerate(ids)}
        assert [sample % 5 for sample in own] == labels.tolist()
        seen.append(own)
    return seen


def _joined(parts: list[list[dict[int, bytes]]]) -> list[dict[int, bytes]]:
    """Return the global batches of the ranks' batches, none of whose samples comes twice."""
    joined = []
    for own in zip(*parts, strict=True):
        joined.append({sample: pixels for part in own for sample, pixels in part.items()})
        assert sum(map(len, own)) == len(joined[-1])
    return joined


def test_worlds_and_resumes_have_the_same_pixels(server: Server) -> None:
    """Global batches, their pixels and costs are as of one rank that nothing deals."""
    in_order = _pixels(_run(server, 0, 1, deal=None))
    kept = [number for number in range(_SAMPLES) if number % 5 < 3]
    assert kept == sorted(sample for batch in in_order for sample in batch)

    for world in (2, 3, 4):
        parts = [_pixels(_run(server, rank, world, deal="balanced")) for rank in range(world)]
        assert in_order == _joined(parts)
        for own in zip(*parts, strict=True):
            if sum(map(len, own)) == _GLOBAL:
                costs = [sum(_LENGTHS[list(part)]) for part in own]
                assert max(costs) < 1.1 * np.mean(costs)


def test_a_dealt_run_resumes_on_more_ranks(server: Server) -> None:
    """From the state of one of two ranks, on three."""
    in_order = _pixels(_run(server, 0, 1, deal=None))
    first = _run(server, 1, 2, deal="balanced")
    reading = iter(first)
    for _ in range(2):
        next(reading)
    state = json.loads(json.dumps(first.state_dict()))
    rest = [_run(server, rank, 3, deal="balanced", where=None) for rank in range(3)]
    for dataset in rest:
        dataset.load_state_dict(state)

    assert in_order[2:] == _joined([_pixels(dataset) for dataset in rest])
