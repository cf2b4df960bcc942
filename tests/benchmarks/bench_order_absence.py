"""Measure how even orders are on sorted data: labels of batches, and how long a class stays away.

Run: ``python tests/benchmarks/bench_order_absence.py [--seeds N] [--epoch N] [CASE ...]``. With
``--streaming FOLDER`` it measures MosaicML's own generator too; ``pip install --no-deps --target
FOLDER mosaicml-streaming==0.13.0`` makes the folder, and what is used of it needs NumPy alone.
docs/decisions/order-version-2.md explains the columns and holds a table.

``--picture FILE`` draws the classes by position instead, of the first seed.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
import time
import types
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.cli.stored.evenness import Evenness, measure
from headrace.order import Order, OrderSpec, ShardTable

Ids = NDArray[np.int64]
_MIB = 1 << 20


def even_table(samples: int, *, sample_bytes: int, shard_bytes: int) -> ShardTable:
    """Return shards of as many samples each, with even blocks of at most 1 MiB."""
    shards = max(round(samples * sample_bytes / shard_bytes), 1)
    counts = np.diff(np.arange(shards + 1) * samples // shards)
    blocks = np.maximum(-(-counts * sample_bytes // _MIB), 1)
    return ShardTable(counts, counts * sample_bytes, block_samples=counts // blocks)


def sorted_labels(samples: int, weights: NDArray[np.float64]) -> Ids:
    """Return the label of each sample in storage order, in the proportions of the weights."""
    ends = np.round(np.cumsum(weights) / weights.sum() * samples).astype(np.int64)
    return np.searchsorted(ends, np.arange(samples), side="right")


@dataclass(frozen=True, slots=True)
class _Case:
    samples: int
    sample_bytes: int
    shard_bytes: int
    labels: int
    spec: OrderSpec
    skewed: bool = False

    def weights(self) -> NDArray[np.float64]:
        if not self.skewed:
            return np.ones(self.labels)
        return np.geomspace(0.001, 0.3, self.labels)


def _cases() -> dict[str, _Case]:
    images = _Case(1_281_167, 110_000, 64 * _MIB, 1000, OrderSpec())
    one_block = OrderSpec(run_bytes=_MIB)
    large = OrderSpec(run_bytes=4 * _MIB, shuffle_bytes=8 << 30)
    cases = {
        "uniform": replace(images, spec=OrderSpec(shuffle_bytes=0)),
        "default": images,
        "runs of one block": replace(images, spec=one_block),
        "runs of 4 MiB, 8 GiB": replace(images, spec=large),
    }
    shards = 900_000_000
    cases |= {
        f"160 shards: {name}": replace(case, shard_bytes=shards) for name, case in cases.items()
    }
    texts = _Case(20_000_000, 3_000, 64 * _MIB, 50, OrderSpec(), skewed=True)
    cases["texts"] = texts
    cases["texts, runs of one block"] = replace(texts, spec=one_block)
    small = OrderSpec(shuffle_bytes=8 * _MIB, run_bytes=8192)
    cases["rows of 16 B, 8 MiB of runs of 8 KiB"] = _Case(20_000_000, 16, _MIB, 1000, small)
    small = OrderSpec(shuffle_bytes=84 * _MIB, run_bytes=84 << 10)
    cases["rows of 168 B, 84 MiB of runs of 84 KiB"] = _Case(20_000_000, 168, 8 * _MIB, 1000, small)
    return cases


def epoch_of(case: _Case, seed: int, epoch: int) -> Ids:
    """Return the sample ids of an epoch."""
    table = even_table(case.samples, sample_bytes=case.sample_bytes, shard_bytes=case.shard_bytes)
    if case.sample_bytes < 1024:
        blocks = np.full_like(table.sample_counts, case.spec.run_bytes // case.sample_bytes // 2)
        table = replace(table, block_samples=blocks)
    order = Order(replace(case.spec, seed=seed), table)
    return order.sample_ids(epoch, 0, case.samples)


def streaming_epoch(folder: Path, algorithm: str, block: int, seed: int, sizes: Ids) -> Ids:
    """Return an epoch of MosaicML's generator on one node of eight ranks, batches of 1,024.

    Args:
        folder: Where the package is installed.
        algorithm: The name of its shuffle.
        block: Samples of its shuffle block.
        seed: Seed of its shuffle.
        sizes: (shards,) samples of each shard.
    """
    # Its modules without its __init__, which wants torch and cloud clients.
    for name in ("streaming", "streaming.base"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
    partition = importlib.import_module("streaming.base.partition")
    shuffle = importlib.import_module("streaming.base.shuffle")
    samples = int(sizes.sum())
    ids = partition.get_partitions("relaxed", samples, 1, 1, 8, 1, 128)
    order = shuffle.get_shuffle(algorithm, sizes, 1, seed, 0, block)
    # Global batch after global batch, each of one batch of every rank.
    ids = np.asarray(ids).reshape(8, -1, 128).transpose(1, 0, 2).ravel()
    sample_ids: Ids = np.asarray(order, np.int64)[ids[ids >= 0]][:samples]
    return sample_ids


def _streaming_rows(folder: Path, seeds: int) -> list[str]:
    case = _cases()["default"]
    sizes = even_table(
        case.samples, sample_bytes=case.sample_bytes, shard_bytes=case.shard_bytes
    ).sample_counts
    labels = sorted_labels(case.samples, case.weights())
    rows = []
    for algorithm, block in (("py1e", 4_000_000), ("py1e", 1 << 18)):
        found = [
            measure(labels[streaming_epoch(folder, algorithm, block, seed, sizes)])
            for seed in range(seeds)
        ]
        rows.append(_line(f"MosaicML {algorithm}, blocks of {block:,}", _mean(found), 0))
    return rows


def _mean(found: list[Evenness]) -> Evenness:
    rows = [astuple(one) for one in found]
    variances = tuple(np.mean([row[0] for row in rows], axis=0).tolist())
    labels, absence, longest = np.mean([row[1:] for row in rows], axis=0).tolist()
    return Evenness(variances, labels, absence, longest)


# Rows and columns of a picture; each point stands for some 41 samples of the data above.
_CLASSES, _SPANS = 125, 250


def _draw(path: Path, epochs: dict[str, Ids], case: _Case) -> None:
    """Draw for each epoch how often classes come in each span of it."""
    mpl = importlib.import_module("matplotlib.figure")
    labels = sorted_labels(case.samples, case.weights()) * _CLASSES // case.labels
    figure = mpl.Figure((9, 2.1 * -(-len(epochs) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(epochs) // 2), 2, sharex=True, sharey=True, squeeze=False)
    expected = case.samples / _CLASSES / _SPANS
    for panel, (name, sample_ids) in zip(panels.ravel(), epochs.items(), strict=False):
        spans = np.arange(case.samples) * _SPANS // case.samples
        counts = np.bincount(labels[sample_ids] * _SPANS + spans, minlength=_CLASSES * _SPANS)
        shown = counts.reshape(_CLASSES, _SPANS) / expected
        panel.imshow(shown, aspect="auto", cmap="magma", vmin=0, vmax=3, extent=(0, 100, 1000, 0))
        panel.set_title(name, fontsize=9)
    figure.supxlabel("position in the epoch, %", fontsize=9)
    figure.supylabel("class, in the order of storage", fontsize=9)
    image = panels[0, 0].images[0]
    bar = figure.colorbar(image, ax=panels, shrink=0.6)
    bar.set_label("samples, 1 where classes come evenly", fontsize=9)
    figure.savefig(path, dpi=80)


def _epochs(streaming: Path | None, epoch: int) -> dict[str, Ids]:
    """Make the epochs of a picture."""
    cases = _cases()
    case = cases["default"]
    table = even_table(case.samples, sample_bytes=case.sample_bytes, shard_bytes=case.shard_bytes)
    chosen = ("uniform", "default", "runs of one block", "runs of 4 MiB, 8 GiB")
    epochs = {name: epoch_of(cases[name], 0, epoch) for name in chosen}
    epochs["default, epoch 0, with its ramp"] = epoch_of(case, 0, 0)
    if streaming is not None:
        sizes = table.sample_counts
        block = streaming_epoch(streaming, "py1e", 1 << 18, 0, sizes)
        epochs["MosaicML Streaming, py1e, blocks of 2^18 samples"] = block
    return epochs


def main() -> None:
    """Print the table, or draw."""
    cases = _cases()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of: {'; '.join(cases)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epoch", type=int, default=1, help="epoch 0 has a ramp; default: 1")
    parser.add_argument("--streaming", type=Path, help="where mosaicml-streaming is installed")
    parser.add_argument("--picture", type=Path, help="draw this PNG instead")
    args = parser.parse_args()
    if args.picture is not None:
        _draw(args.picture, _epochs(args.streaming, args.epoch), cases["default"])
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"{'order':42} {'variance':>20} {'labels':>7} {'absence':>12} {'ns':>5}")
    for name in args.cases or cases:
        print(_row(name, cases[name], args.seeds, args.epoch), flush=True)
    for row in [] if args.streaming is None else _streaming_rows(args.streaming, args.seeds):
        print(row, flush=True)


def _row(name: str, case: _Case, seeds: int, epoch: int) -> str:
    labels = sorted_labels(case.samples, case.weights())
    found, began = [], time.process_time()
    spent = 0.0
    for seed in range(seeds):
        began = time.process_time()
        sample_ids = epoch_of(case, seed, epoch)
        spent += time.process_time() - began
        found.append(measure(labels[sample_ids]))
    return _line(name, _mean(found), spent / seeds / case.samples * 1e9)


def _line(name: str, mean: Evenness, nanoseconds: float) -> str:
    variances = " / ".join(f"{variance:.2f}" for variance in mean.variances)
    return (
        f"{name:42} {variances:>20} {mean.labels:7.0f}"
        f" {mean.absence:5.2f} {mean.longest:6.2f} {nanoseconds:5.0f}"
    )


if __name__ == "__main__":
    main()
