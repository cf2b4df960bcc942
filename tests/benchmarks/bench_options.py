"""What every option of order, mixture, skips, end and stride costs, beside the default.

    PYTHONPATH=tests:examples python tests/benchmarks/bench_options.py

A server in a process of its own streams batches of small samples. Printed is its processor time a
batch, the mean of those after the first, and how many times that of the default at the same size
of batch it is; ten at most is the aim. The first batch is told apart.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from headrace.bench.children import serving
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from support.asking import asking, order_stages
from support.datasets import small_table, write_dataset

SAMPLES = 100_000
MEMBER_SAMPLES = 500
_BOUND = 10.0
# In less, much of it is planning ahead of need.
_LEAST_S, _MOST_S = 1.0, 8.0

Options = dict[str, Any]


def _order(**fields: Any) -> Options:
    return {"order": pb.OrderSpec(seed=1, **fields)}


def _skips(ids: Any) -> Options:
    return {"skips": pb.SkipList(sample_ids=ids)}


def _mixed(count: int, **fields: Any) -> Options:
    datasets = [mixtures_pb.MixtureDataset(name=f"m{number:04d}") for number in range(count)]
    return {"dataset": "", "mixture": mixtures_pb.Mixture(datasets=datasets, **fields)}


def _weighted(count: int, weights: list[float], **fields: Any) -> Options:
    options = _mixed(count, **fields)
    for dataset, weight in zip(options["mixture"].datasets, weights, strict=True):
        dataset.proportion = weight
    return options


def one_dataset(batch: int) -> Iterator[tuple[str, Options]]:
    """Yield the options of requests of one dataset, by name."""
    for window in (1, 2, 3, 5, 10, 30, 100, 1000, 10_000, 0):
        yield f"shuffle_samples={window}", _order(shuffle_samples=window)
    for window_bytes in (1, 100, 1000, 10_000):
        yield f"shuffle_bytes={window_bytes}", _order(shuffle_bytes=window_bytes)
    yield "shuffle_samples=1 shuffle_bytes=1", _order(shuffle_samples=1, shuffle_bytes=1)
    yield "shuffle=false", _order(shuffle=False)
    for lanes in (2, 8, 64, 65):
        unit = max(lanes, batch)
        yield f"lanes={lanes} unit={unit}", _order(lanes=lanes, unit=unit)
    yield "lanes=8 unit=8", _order(lanes=8, unit=8)
    yield "lanes=64 shuffle_samples=1", _order(lanes=64, unit=64, shuffle_samples=1)
    for stride in (2, 256, 257):
        yield f"batch_stride={stride}", {"batch_stride": stride}
    for end in ("UNEVEN", "PAD"):
        yield f"end={end}", {"end": f"END_MODE_{end}"}
    yield (
        "end=PAD, 4 ranks",
        {
            "end": "END_MODE_PAD",
            "world_size": 4,
        },
    )
    yield "skips: one", _skips([5])
    yield "skips: 8,000 neighbours", _skips(range(5000, 13_000))
    yield "skips: every other of 60,000", _skips(range(0, 60_000, 2))
    yield "skips: 65,536 neighbours", _skips(range(65_536))
    yield "skips, shuffle=false", {**_skips(range(65_536)), **_order(shuffle=False)}
    yield "skips, shuffle_samples=1", {**_skips(range(65_536)), **_order(shuffle_samples=1)}
    yield "skips, shuffle_samples=100", {**_skips(range(65_536)), **_order(shuffle_samples=100)}


def mixtures(batch: int) -> Iterator[tuple[str, Options]]:
    """Yield the options of requests of mixtures, by name."""
    for count in (2, 1000):
        yield f"{count} datasets", _mixed(count)
    for name in ("RANDOM", "STRATIFIED", "PER_DATASET"):
        for unit in (1, batch):
            batching = f"BATCHING_{name}"
            title = f"100 datasets, {name.lower()}, unit={unit}"
            yield title, {**_mixed(100, batching=batching), **_order(unit=unit)}
    yield (
        "1,000, stratified",
        {
            **_mixed(1000, batching="BATCHING_STRATIFIED"),
            **_order(unit=batch),
        },
    )
    yield "1,000, extreme proportions", _weighted(1000, [1e-9] * 999 + [1.0])
    yield "100 datasets, shuffle_samples=1", {**_mixed(100), **_order(shuffle_samples=1)}
    yield "100 datasets, shuffle=false", {**_mixed(100), **_order(shuffle=False)}
    yield "100 datasets, lanes=8", {**_mixed(100), **_order(lanes=8, unit=max(8, batch))}
    pieces = [
        mixtures_pb.SchedulePiece(start=16 * number, weights=[1.0 + number % 3, 1.0])
        for number in range(256)
    ]
    yield "schedule of 256 pieces", _mixed(2, schedule=pieces)
    skipped = _mixed(100)
    for dataset in skipped["mixture"].datasets:
        skips = pb.SkipList(sample_ids=range(MEMBER_SAMPLES - 1))
        dataset.stages.extend(order_stages(skips=skips))
    yield "100 datasets, all but one skipped", skipped


class _Meter:
    """Measures requests at one server."""

    def __init__(self, address: str, pid: int) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub = pb_grpc.ShardServiceStub(self._channel)
        self._clock = (~pid << 3) | 2

    def cost(self, batch: int, options: Options) -> tuple[float, float]:
        """Return the processor time of the first batch and of each later one, in seconds.

        Raises:
            grpc.RpcError: The server refuses.
        """
        fields = {
            "dataset": "d",
            "order": pb.OrderSpec(seed=1),
            "global_batch_size": batch,
            "world_size": 1,
            "epoch_start": pb.EpochStart(),
            **options,
        }
        if "world_size" in options:
            fields["global_batch_size"] = batch * fields["world_size"]
        call: Any = self._stub.ReadBatches(asking(pb.ReadBatchesRequest, **fields), timeout=300)
        began_s = self._now()
        batches = (message for message in call if message.HasField("batch"))
        next(batches)
        first_s, began, count = self._now() - began_s, time.monotonic(), 0
        begun_s = self._now()
        for count in itertools.count(1):
            next(batches)
            spent_s = self._now() - begun_s if count % 16 == 0 else 0.0
            if spent_s >= _LEAST_S or time.monotonic() - began >= _MOST_S:
                break
        spent_s = self._now() - begun_s
        call.cancel()
        return first_s, spent_s / count

    def _now(self) -> float:
        return time.clock_gettime(self._clock)


def main() -> int:
    """Print the table; return 1 if an option costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        urls = _write(Path(folder), arguments.members)
        with serving(urls, "--log-level=error", "--max-stream-s=0") as server:
            meter = _Meter(server.address, server.process.pid)
            worst = max(
                _table(meter, batch, members=arguments.members, only=arguments.only)
                for batch in arguments.batch
            )
    return int(worst > _BOUND)


def _write(folder: Path, members: int) -> dict[str, str]:
    large, small = str(folder / "d"), str(folder / "m")
    write_dataset(
        large, small_table(SAMPLES), shard_samples=[SAMPLES // 10] * 10, block_bytes=65_536
    )
    write_dataset(small, small_table(MEMBER_SAMPLES), shard_samples=[250, 250], block_bytes=16_384)
    return {"d": large, **{f"m{number:04d}": small for number in range(members)}}


def _table(meter: _Meter, batch: int, *, members: int, only: str) -> float:
    # What is measured is not the first read of each block.
    meter.cost(batch, {})
    meter.cost(8192, _mixed(members))
    _, default_s = meter.cost(batch, {})
    sys.stdout.write(f"batch {batch}: default {default_s * 1e3:.3f} ms\n")
    worst = 0.0
    for name, options in itertools.chain(one_dataset(batch), mixtures(batch)):
        if only not in name:
            continue
        try:
            first_s, each_s = meter.cost(batch, options)
        except (grpc.RpcError, StopIteration, ValueError) as error:
            text = error.details() if isinstance(error, grpc.Call) else repr(error)
            sys.stdout.write(f"{name:44} refused: {text[:150]}\n")
            continue
        times = each_s / default_s
        mark = " !!!" if times > _BOUND else ""
        sys.stdout.write(
            f"{name:44} {each_s * 1e3:9.3f} ms {times:7.1f} x, "
            f"first {first_s * 1e3:8.1f} ms{mark}\n"
        )
        sys.stdout.flush()
        worst = max(worst, times)
    return worst


if __name__ == "__main__":
    sys.exit(main())
