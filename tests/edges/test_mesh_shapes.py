"""Every rank of a mesh gets its part of the global batch, and a host each byte once."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pytest
import torch

from headrace.client import NumpyDataset, Sharding
from headrace.order import SequenceLayout
from support.datasets import write_dataset
from support.mesh_job import COLUMNS, GLOBAL_BATCH, attention, states_of
from support.running import server_of

JOB = Path(__file__).parents[1] / "support" / "mesh_job.py"
LENGTH = 64
SAMPLES = 2 * GLOBAL_BATCH
AXES = ("pp", "dp", "cp", "tp")
SHAPES = [
    dict(zip(AXES, sizes, strict=True))
    for sizes in itertools.product((1, 2, 4, 8, 16), repeat=4)
    if math.prod(sizes) == 16
]


def _table() -> pa.Table:
    numbers = np.arange(SAMPLES * LENGTH, dtype=np.int32)
    rows = {"tokens": numbers, "labels": numbers + 1, "keys": numbers % 97}
    return pa.table(
        {
            name: pa.FixedSizeListArray.from_arrays(pa.array(values), LENGTH)
            for name, values in rows.items()
        }
    )


def _run(folder: Path, shapes: list[dict[str, int]]) -> tuple[list[list[Any]], list[Any], float]:
    """Return what each rank found, the global batches, and the bytes that the server sent."""
    write_dataset(str(folder / "d"), _table(), shard_samples=[SAMPLES])
    with server_of({"d": str(folder / "d")}, metrics_listen="127.0.0.1:0") as server:
        job = [sys.executable, str(JOB), str(folder), server.address, json.dumps(shapes)]
        subprocess.run(job, check=True, timeout=500)
        with urlopen(f"http://{server.metrics_address}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        sent = sum(
            float(line.split()[1])
            for line in lines
            if line.startswith("headrace_sent_payload_bytes_total")
        )
        sharding = Sharding(global_batch_size=GLOBAL_BATCH)
        with NumpyDataset(server.address, "d", seed=3, epochs=1, sharding=sharding) as dataset:
            whole = list(dataset)
    ranks = [
        pickle.loads((folder / f"{rank}.pickle").read_bytes())
        for rank in range(math.prod(shapes[0].values()))
    ]
    return ranks, whole, sent


def _check(shape: dict[str, int], rank: int, layout: str, found: Any, whole: list[Any]) -> None:
    """Compare what a rank got with its part of what a single process makes of the global batch."""
    pp, dp, cp, _ = np.unravel_index(rank, tuple(shape.values()))
    stretches = SequenceLayout(layout).stretches(LENGTH, int(cp), shape["cp"])
    at = np.concatenate([np.arange(*each) for each in stretches])
    share = GLOBAL_BATCH // shape["dp"]
    rows = slice(dp * share, (dp + 1) * share)
    gone = set()
    if pp > 0:
        gone.add("tokens")
    if pp < shape["pp"] - 1:
        gone.add("labels")
    for batch, scores, (arrays, expected) in zip(
        found["batches"], found["attention"], whole, strict=True
    ):
        wanted = {name: arrays[name][rows][:, at] for name in COLUMNS if name not in gone}
        np.testing.assert_equal(batch, {**wanted, "at": np.tile(at, (share, 1))})
        np.testing.assert_allclose(scores, expected[rows][:, at], rtol=1e-9, atol=1e-9)


def _attention(arrays: Any) -> Any:
    states, places = states_of(torch.from_numpy(arrays["keys"])), torch.arange(LENGTH)
    return attention(states, places, states, places).numpy()


def _check_all(folder: Path, shapes: list[dict[str, int]]) -> None:
    ranks, batches, sent = _run(folder, shapes)
    whole = [(arrays, _attention(arrays)) for arrays in batches]
    for number, shape in enumerate(shapes):
        for rank, of_rank in enumerate(ranks):
            for layout, found in of_rank[number].items():
                _check(shape, rank, layout, found, whole)
                assert ("; shared:" in f"; {found['shared']}") == (shape["pp"] * shape["tp"] > 1)
    # Each part once, with all columns and the positions.
    rows = SAMPLES * len(shapes) * 2
    assert sent <= 1.05 * rows * LENGTH * 4 * (len(COLUMNS) + 1)


def test_ranks_of_a_mesh_get_their_parts(tmp_path: Path) -> None:
    """Of four ranks, in two shapes: rows, parts, labels and attention."""
    shapes = [{"pp": 2, "dp": 1, "cp": 1, "tp": 2}, {"pp": 1, "dp": 2, "cp": 2, "tp": 1}]

    _check_all(tmp_path, shapes)


@pytest.mark.long
def test_every_shape_of_sixteen_ranks(tmp_path: Path) -> None:
    """All 35 shapes with four axes, one after another."""
    assert 35 == len(SHAPES)

    _check_all(tmp_path, SHAPES)
