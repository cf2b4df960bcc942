"""Measure what an epoch reads from its store, by the part of what it needs that the cache has.

Run: ``PYTHONPATH=tests python tests/benchmarks/bench_soft_edge.py [--mib 32] [--picture FILE]``.
It writes rows, images and texts, as large as what is shuffled together and three times as large,
in blocks of 16 KiB, so that as many blocks are shuffled together as by default; and prints the
blocks fetched over the blocks stored, in an epoch without a ramp of servers with less and less
memory.
Counts do not depend on the machine.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.needs import needed_cache
from support.running import running
from support.served import messages_of

_BLOCK_BYTES = 16 << 10
_PARTS = (1.05, 1.0, 0.95, 0.9, 0.75, 0.6, 0.5, 0.3)
_BATCHES = 256


def _rows(count: int, random: np.random.Generator) -> pa.Table:
    values = pa.array(random.random(count * 40, dtype=np.float32))
    x = pa.FixedSizeListArray.from_arrays(values, 40)
    return pa.table({"x": x, "label": np.arange(count)})


def _images(count: int, random: np.random.Generator) -> pa.Table:
    return pa.table({"image": [random.bytes(1024) for _ in range(count)]})


def _texts(count: int, random: np.random.Generator) -> pa.Table:
    lengths: NDArray[np.int64] = random.integers(20, 60, count)
    return pa.table({"text": [f"{i:010d}" * int(n) for i, n in enumerate(lengths // 2)]})


_KINDS: dict[str, tuple[int, Callable[[int, np.random.Generator], pa.Table]]] = {
    "rows": (168, _rows),
    "images": (1028, _images),
    "texts": (200, _texts),
}


def main() -> None:
    """Write, read, count, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=32, help="what is shuffled together")
    parser.add_argument("--picture", type=Path, help="draw the figures into this file")
    given = parser.parse_args()
    print(f"# {platform.machine()}, Python {platform.python_version()}, {given.mib} MiB shuffled")
    print(f"{'':<16}" + "".join(f"{part:>8}" for part in _PARTS))
    found: dict[str, list[float]] = {}
    for kind, (size, make) in _KINDS.items():
        for times, name in ((1, kind), (3, f"{kind}, 3 times")):
            with tempfile.TemporaryDirectory() as folder:
                count = given.mib * times * (1 << 20) // size
                table = make(count, np.random.default_rng(7))
                write_dataset(
                    folder,
                    table,
                    shard_samples=[count // 4] * 3 + [count - count // 4 * 3],
                    block_bytes=_BLOCK_BYTES,
                )
                print(f"{name:<16}", end="", flush=True)
                found[name] = [_amount(folder, given.mib << 20, part) for part in _PARTS]
                print()
    if given.picture:
        draw(found, given.picture)


def _amount(url: str, shuffle_bytes: int, part: float) -> float:
    """Return the blocks that an epoch fetches over those that are stored."""
    with open_dataset(url) as dataset:
        blocks = dataset.block_count
        together = min(1.0, shuffle_bytes / dataset.raw_bytes) * dataset.sample_count
    with running(
        url, cache_bytes=int(part * needed_cache(url, shuffle_bytes=shuffle_bytes))
    ) as served:
        request = pb.ReadBatchesRequest(
            dataset="rich",
            order=pb.OrderSpec(seed=3, shuffle_bytes=shuffle_bytes, run_bytes=2 * _BLOCK_BYTES),
            global_batch_size=int(together) // _BATCHES,
            world_size=1,
            epoch_start=pb.EpochStart(epoch=1),
            epoch_count=1,
            end=pb.END_MODE_UNEVEN,
            max_group_bytes=1 << 20,
        )
        for _ in messages_of(served.channel, request):
            pass
        fetched = served.server._metrics.registry.get_sample_value(
            "headrace_store_fetched_blocks_total", {"dataset": "rich"}
        )
    amount = (fetched or 0.0) / blocks
    print(f"{amount:>8.2f}", end="", flush=True)
    return amount


def draw(found: dict[str, Sequence[float]] | dict[str, list[float]], path: Path) -> None:
    """Draw the figures by the part of the cache."""
    import matplotlib as mpl  # noqa: PLC0415 - only for the picture

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for name, amounts in found.items():
        style = "--" if "times" in name else "-"
        axes.plot(_PARTS, amounts, style, marker="o", markersize=3, label=name)
    axes.plot([0.9, 0.75, 0.5], [2.2, 4, 6.5], "kv", label="at most")
    axes.set(
        xlabel="cache, as a part of what the job needs",
        ylabel="bytes fetched / bytes stored",
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
