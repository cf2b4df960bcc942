"""The main job with real parts: Spark, an S3 server, `headrace serve`, ranks, and SIGKILL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from demo.object_store import Weed
from demo.processes import Processes
from demo.serving import Server
from headrace.client import Batch, Order, RemoteDataset, Sharding, Transport
from headrace.converter import write_shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMAL = Path(__file__).parents[2] / "examples" / "minimal.py"
SAMPLES = 3000
GLOBAL_BATCH_SIZE = 64
STEPS = SAMPLES // GLOBAL_BATCH_SIZE
EPOCHS = 2

GlobalBatch = tuple[int, int, list[int]]
"""Epoch, position and the sample ids of all ranks, in order."""


@pytest.fixture(scope="module")
def server(
    spark: SparkSession, weed: Weed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Convert a small frame into S3 and serve it as ``numbers``."""
    url = f"s3://{weed.bucket}/main-job/numbers"
    frame = spark.range(SAMPLES, numPartitions=5).selectExpr(
        "id AS number",
        "concat('sample ', id) AS text",
        "cast(concat('bytes ', id) AS binary) AS content",
        "array(cast(id AS float), cast(2 * id AS float)) AS vector",
    )
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in weed.environment().items():
            patch.setenv(variable, value)
        write_shards(frame, url)
    with Processes(tmp_path_factory.mktemp("logs"), weed.environment()) as processes:
        yield Server(processes, {"numbers": url})


def test_faults_change_no_global_batch(server: Server) -> None:
    """Through a killed server and a resume on three ranks, batches are those of a quiet run."""
    wanted = _global_batches(_ranks(server, world_size=1))

    pair = _ranks(server, world_size=2)
    seen = _global_batches(pair, steps=STEPS // 3)
    server.kill_and_replace()
    seen += _global_batches(pair, steps=STEPS // 3)
    state = pair[1].state_dict()
    for rank in pair:
        rank.close()
    seen += _global_batches(_ranks(server, world_size=3, state=state))

    assert wanted == seen
    assert len(wanted) == EPOCHS * STEPS


def test_every_sample_arrives_whole(server: Server) -> None:
    """An epoch over uneven ranks holds each of Spark's rows once, with its columns together."""
    ranks = _ranks(server, world_size=3, epochs=1, end="uneven")
    rows = [row for rank in ranks for batch in rank for row in _rows(batch)]

    assert sorted(rows) == [
        (number, f"sample {number}", f"bytes {number}".encode(), (float(number), 2.0 * number))
        for number in range(SAMPLES)
    ]


def test_the_ten_lines_of_the_readme_run(server: Server) -> None:
    """examples/minimal.py prints every batch of an epoch, and a state to go on from."""
    ended = subprocess.run(
        [sys.executable, MINIMAL, server.address, "numbers"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    *batches, state = ended.stdout.splitlines()

    assert len(batches) == SAMPLES // 32
    assert json.loads(state)["spec"]["epoch"] == 1


def _ranks(
    server: Server,
    *,
    world_size: int,
    state: Mapping[str, object] | None = None,
    epochs: int = EPOCHS,
    end: str = "drop_last",
) -> list[RemoteDataset]:
    ranks = [
        RemoteDataset(
            server.address,
            "numbers",
            seed=7,
            rank=rank,
            world_size=world_size,
            epochs=epochs,
            end=end,  # type: ignore[arg-type] # one of its literals
            # Little, so that a rank cannot live on what it has in hand when the server dies.
            transport=Transport(prefetch_bytes=1024),
            sharding=Sharding(global_batch_size=GLOBAL_BATCH_SIZE),
            order=Order(with_ids=True),
        )
        for rank in range(world_size)
    ]
    if state is not None:
        for rank in ranks:
            rank.load_state_dict(state)
    return ranks


def _global_batches(
    ranks: Sequence[RemoteDataset], *, steps: int | None = None
) -> list[GlobalBatch]:
    """Read some steps, or all that are left, from all ranks side by side."""
    batches: list[GlobalBatch] = []
    while True:
        before = len(batches)
        for slices in zip(*ranks, strict=True):
            batches.append(_joined(slices))
            if len(batches) == steps:
                return batches
        if len(batches) == before:
            return batches


def _joined(slices: Sequence[Batch]) -> GlobalBatch:
    places = {(batch.epoch, batch.position) for batch in slices}
    assert len(places) == 1, places
    epoch, position = places.pop()
    ids = [batch.sample_ids for batch in slices]
    return epoch, position, torch.cat([part for part in ids if part is not None]).tolist()


def _rows(batch: Batch) -> list[tuple[object, ...]]:
    vectors = batch["vector"]
    numbers = batch["number"]
    assert isinstance(vectors, torch.Tensor)
    assert isinstance(numbers, torch.Tensor)
    return list(
        zip(
            numbers.tolist(),
            batch["text"],
            batch["content"],
            map(tuple, vectors.tolist()),
            strict=True,
        )
    )
