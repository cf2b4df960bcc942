"""Measure how well the order shuffles, against a full permutation and usual block shuffles.

Run: ``PYTHONPATH=tests python tests/benchmarks/bench_order_quality.py [--samples N]``, or with
``--starts`` for how epochs start. docs/shuffle-quality.md explains it and holds the tables.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench_order_absence import even_table
from headrace.order import Order, OrderSpec, ShardTable

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quality:
    """What an order makes of data that is sorted by label in storage.

    Attributes:
        neighbours: Median distance in the epoch of two samples that are neighbours in storage,
            over that of a full permutation (0.293 epochs).
        shards: Distinct shards in a batch, over those of a full permutation.
        labels: Variance of the number of samples of a label in a batch, over that of a full
            permutation: 1 is perfect, the batch size is the worst.
    """

    neighbours: float
    shards: float
    labels: float


def measure(sample_ids: Ids, *, shard_samples: int, labels: int, batch_size: int) -> Quality:
    """Measure one epoch.

    Args:
        sample_ids: (samples,) the sample id at each position.
        shard_samples: Samples of each shard.
        labels: Number of labels; storage is sorted by them, with equally many samples each.
        batch_size: Samples of a batch.
    """
    count = len(sample_ids)
    positions = np.empty(count, np.int64)
    positions[sample_ids] = np.arange(count)
    apart = np.median(np.abs(np.diff(positions))) / count
    batches = sample_ids[: count - count % batch_size].reshape(-1, batch_size)
    shards = count / shard_samples
    wanted = shards * (1 - (1 - 1 / shards) ** batch_size)
    return Quality(
        neighbours=float(apart / (1 - np.sqrt(0.5))),
        shards=float(_distinct(batches // shard_samples) / wanted),
        labels=_label_variance(batches * labels // count, labels),
    )


def _distinct(batches: Ids) -> float:
    changes = np.diff(np.sort(batches, axis=1), axis=1) > 0
    return float(changes.sum(axis=1).mean() + 1)


def _label_variance(batches: Ids, labels: int) -> float:
    rows, batch_size = batches.shape
    cells = batches + np.arange(rows)[:, None] * labels
    counts = np.bincount(cells.ravel(), minlength=rows * labels)
    mean = batch_size / labels
    return float(((counts - mean) ** 2).mean() / (mean * (1 - 1 / labels)))


def headrace_order(spec: OrderSpec, *, samples: int, shard_samples: int, sample_bytes: int) -> Ids:
    """Return an epoch of headrace's order."""
    counts = np.full(samples // shard_samples, shard_samples, np.int64)
    order = Order(spec, ShardTable(counts, counts * sample_bytes))
    return order.sample_ids(0, 0, samples)


def full_permutation(samples: int) -> Ids:
    """Return a full permutation."""
    return np.random.default_rng(1).permutation(samples)


def block_shuffle(samples: int, shard_samples: int, block: int) -> Ids:
    """Permute the shards, then shuffle each block of consecutive samples."""
    rng = np.random.default_rng(1)
    laid_out = rng.permutation(samples // shard_samples)[:, None] * shard_samples
    sample_ids = (laid_out + np.arange(shard_samples)).ravel()
    for start in range(0, samples, block):
        rng.shuffle(sample_ids[start : start + block])
    return sample_ids


def buffer_shuffle(samples: int, shard_samples: int, buffer: int) -> Ids:
    """Permute the shards, then draw each sample from a buffer that is filled up in order."""
    rng = np.random.default_rng(1)
    source = block_shuffle(samples, shard_samples, 1)
    drawn = np.empty(samples, np.int64)
    held = source[:buffer].copy()
    slots = rng.integers(0, buffer, samples - buffer)
    for place, slot in enumerate(slots.tolist()):
        drawn[place] = held[slot]
        held[slot] = source[buffer + place]
    drawn[samples - buffer :] = rng.permutation(held)
    return drawn


def start_labels(spec: OrderSpec, *, epoch: int, batches: int = 10) -> list[int]:
    """Return the labels in the first batches of 1,024 of an epoch of sorted ImageNet.

    That is 1,281,167 samples of 110 kB with 1,000 labels, in shards of 64 MiB.
    """
    samples, labels, size = 1_281_167, 1000, 1024
    order = Order(spec, even_table(samples, sample_bytes=110_000, shard_bytes=64 << 20))
    drawn = order.sample_ids(epoch, 0, batches * size) * labels // samples
    return [len(np.unique(batch)) for batch in drawn.reshape(batches, size)]


def _print_starts(seeds: int) -> None:
    print(f"labels of 1,000 in each of the first ten batches of 1,024; means over {seeds} seeds")
    for lanes in (1, 8):
        for epoch, ramp in ((0, True), (0, False), (1, True)):
            found = [
                start_labels(OrderSpec(seed=seed, lanes=lanes, unit=1024, ramp=ramp), epoch=epoch)
                for seed in range(seeds)
            ]
            means = " ".join(f"{mean:4.0f}" for mean in np.mean(found, axis=0))
            print(f"lanes {lanes}, epoch {epoch}, ramp {ramp!s:5}: {means}, least {np.min(found)}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", action="store_true", help="print the labels of first batches")
    parser.add_argument("--seeds", type=int, default=5, help="seeds to take means over")
    parser.add_argument("--samples", type=int, default=8_000_000)
    parser.add_argument("--shard-samples", type=int, default=20_000)
    parser.add_argument("--sample-bytes", type=int, nargs="*", default=[100, 3_000, 100_000])
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()
    if args.starts:
        _print_starts(args.seeds)
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(
        f"{args.samples} samples sorted by {args.labels} labels in shards of"
        f" {args.shard_samples}, batches of {args.batch_size}"
    )
    print(f"{'order':44} {'neighbours':>10} {'shards':>7} {'labels':>7}")
    for name, make in _orders(args.samples, args.shard_samples, args.sample_bytes):
        quality = measure(
            make(), shard_samples=args.shard_samples, labels=args.labels, batch_size=args.batch_size
        )
        print(f"{name:44} {quality.neighbours:10.3f} {quality.shards:7.3f} {quality.labels:7.2f}")


def _orders(
    samples: int, shard_samples: int, sizes: list[int]
) -> list[tuple[str, Callable[[], Ids]]]:
    orders: list[tuple[str, Callable[[], Ids]]] = [
        ("full permutation", lambda: full_permutation(samples)),
        ("storage order", lambda: np.arange(samples)),
    ]
    orders += [
        (
            f"shards, then a buffer of {buffer}",
            _later(buffer_shuffle, samples, shard_samples, buffer),
        )
        for buffer in (1_000, 10_000)
    ]
    orders += [
        (
            f"shards, then blocks of 2^{bits}",
            _later(block_shuffle, samples, shard_samples, 1 << bits),
        )
        for bits in (16, 18, 20)
    ]
    for sample_bytes in sizes:
        orders += [
            (
                f"headrace, {sample_bytes} B a sample, window 2^{bits}",
                _headrace(
                    OrderSpec(shuffle_samples=1 << bits), samples, shard_samples, sample_bytes
                ),
            )
            for bits in (14, 16, 18, 20)
        ]
    return orders


def _later(make: Callable[[int, int, int], Ids], *sizes: int) -> Callable[[], Ids]:
    return lambda: make(*sizes)


def _headrace(
    spec: OrderSpec, samples: int, shard_samples: int, sample_bytes: int
) -> Callable[[], Ids]:
    return lambda: headrace_order(
        spec, samples=samples, shard_samples=shard_samples, sample_bytes=sample_bytes
    )


if __name__ == "__main__":
    main()
