"""Runs that are stopped and resumed at random send what order functions alone say.

A history is a dataset or a mixture, an order, and runs with other servers, caches and numbers of
ranks, each from a token of the one before. The reference reads nothing but shard tables.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.order import (
    AnyOrder,
    Batching,
    EndMode,
    EpochPlan,
    MixtureDataset,
    MixtureSpec,
    OrderSpec,
    ShardTable,
    Subset,
    batch_sample_ids,
    mixture_order_of,
    order_of,
    table_of,
)
from headrace.storage import open_dataset
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from support.asking import order_stages
from support.datasets import write_dataset
from support.running import server_of
from support.served import messages_of, transcript

_SHARDS = {"a": [50, 39, 1], "b": [1], "c": [47], "d": [300, 0, 250, 150], "e": [1000, 2000, 1500]}
_BLOCK_BYTES = {"a": 512, "b": 512, "c": 64, "d": 100, "e": 800}
_ENDS = {
    EndMode.DROP_LAST: pb.END_MODE_DROP_LAST,
    EndMode.UNEVEN: pb.END_MODE_UNEVEN,
    EndMode.PAD: pb.END_MODE_PAD,
}
_BATCHING = {
    Batching.RANDOM: mixtures_pb.BATCHING_RANDOM,
    Batching.STRATIFIED: mixtures_pb.BATCHING_STRATIFIED,
    Batching.PER_DATASET: mixtures_pb.BATCHING_PER_DATASET,
}
_EPOCHS = 2
_MOST_BATCHES = 60


@dataclass(frozen=True, slots=True)
class Stored:
    """A dataset whose column ``number`` is unique among all: a thousandth part is the dataset.

    Attributes:
        url: Where it is.
        fingerprint: Its fingerprint.
        table: Its shard table.
        numbers: ``(samples,)``: the values by sample id.
    """

    url: str
    fingerprint: str
    table: ShardTable
    numbers: NDArray[np.int64]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    """Datasets from 1 to 4,500 samples, with small blocks and empty shards."""
    found = {}
    for place, (name, shards) in enumerate(_SHARDS.items()):
        url = str(tmp_path_factory.mktemp("histories") / name)
        numbers = np.arange(sum(shards), dtype=np.int64) + 10_000 * place
        sizes = [count for count in shards if count]
        write_dataset(
            url,
            pa.table({"number": numbers}),
            shard_samples=sizes,
            block_bytes=_BLOCK_BYTES[name],
        )
        with open_dataset(url) as dataset:
            table = table_of(dataset.stretches())
            found[name] = Stored(url, dataset.fingerprint, table, numbers)
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """What is asked for, as a request, and what shall come, from order functions alone.

    Attributes:
        request: Without a start and a rank.
        order: The order.
        plan: How its epochs are cut.
        numbers: The values by the sample ids of the order.
        first_epoch: The first epoch.
    """

    request: pb.ReadBatchesRequest
    order: AnyOrder
    plan: EpochPlan
    numbers: NDArray[np.int64]
    first_epoch: int

    def wanted(self, step: int, *, rank: int, world_size: int) -> list[int]:
        """Return the values of a rank at a step of the run."""
        later, index = divmod(step, self.plan.batch_count)
        batch = self.plan.batch(index, rank=rank, world_size=world_size)
        ids = batch_sample_ids(self.order, self.first_epoch + later, batch)
        values: list[int] = self.numbers[ids].tolist()
        return values


def _run(random_: random.Random, stored: Mapping[str, Stored]) -> Run:
    size = random_.choice([1, 3, 12, 64, 200])
    options: dict[str, Any] = {
        "seed": random_.choice([0, 7, 2**63 - 1]),
        "shuffle": random_.random() < 0.9,
        "shuffle_samples": random_.choice([0, 1, 40, 300, 3000]),
        "run_bytes": random_.choice([1, 64, 1000, 1 << 21]),
        "ramp": random_.random() < 0.5,
        "unit": size,
        "lanes": random_.choice([1, 1, min(3, size)]),
    }
    spec, end = OrderSpec(**options), random_.choice(list(_ENDS))
    request = pb.ReadBatchesRequest(
        order=pb.OrderSpec(**options), global_batch_size=size, end=_ENDS[end], columns=["number"]
    )
    names = random_.sample(list(_SHARDS), random_.choice([1, 1, 2, 3]))
    kept = [_kept(random_, stored[name]) for name in names]
    tables = [
        stored[name].table if each is None else each[1].table(stored[name].table)
        for name, each in zip(names, kept, strict=True)
    ]
    bits = [None if each is None else each[1] for each in kept]
    wheres = ["" if each is None else each[0] for each in kept]
    order: AnyOrder
    if len(names) == 1:
        request.dataset = names[0]
        request.stages.extend(order_stages(where=wheres[0]))
        order = order_of(spec, tables[0], bits[0])
    else:
        mixture = _mixture(random_, request, {name: stored[name] for name in names}, wheres, spec)
        order = mixture_order_of(mixture, tables, bits)
    return Run(
        request,
        order,
        EpochPlan(order.sample_count, 0, size, end),
        np.concatenate([stored[name].numbers for name in names]),
        random_.choice([0, 0, 1, 2**40]),
    )


def _kept(random_: random.Random, dataset: Stored) -> tuple[str, Subset] | None:
    """Return a filter and what it keeps; None for all."""
    if random_.random() < 0.7:
        return None
    last = random_.choice(dataset.numbers.tolist())
    bits = np.packbits(dataset.numbers <= last, bitorder="little")
    return f"number <= {last}", Subset(bits, len(dataset.numbers))


def _mixture(
    random_: random.Random,
    request: pb.ReadBatchesRequest,
    members: Mapping[str, Stored],
    wheres: list[str],
    spec: OrderSpec,
) -> MixtureSpec:
    """Enter a mixture into a request, and return it."""
    batching = random_.choice(list(_BATCHING))
    asked = mixtures_pb.Mixture(batching=_BATCHING[batching])
    amount = random_.choice(["", "proportion", "repeat", "choose"])
    datasets = []
    for (name, member), where in zip(members.items(), wheres, strict=True):
        value = random_.choice([14, 60] if amount == "choose" else [0.5, 1.0, 2.5])
        given: dict[str, Any] = {amount: value} if amount else {}
        asked.datasets.add(name=name, stages=order_stages(where=where), **given)
        datasets.append(MixtureDataset(name, member.fingerprint, **given))
    request.stages.extend(order_stages(mixture=asked))
    return MixtureSpec(tuple(datasets), order=spec, batching=batching)


def _live(random_: random.Random, run: Run, stored: Mapping[str, Stored]) -> None:
    """Stop and resume a run at random, and compare each batch."""
    urls = {name: each.url for name, each in stored.items()}
    total = min(_EPOCHS * run.plan.batch_count, _MOST_BATCHES)
    step, token = 0, b""
    while step < total:
        cache_bytes = random_.choice([1 << 12, 1 << 14, 1 << 24])
        with ExitStack() as stack:
            # What still streams when a server ends is cut.
            server = stack.enter_context(server_of(urls, cache_bytes=cache_bytes, drain_s=0))
            channel = stack.enter_context(grpc.insecure_channel(server.address))
            for _ in range(random_.choice([1, 2, 3])):
                count = min(random_.choice([1, 2, 5, 20]), total - step)
                if count:
                    token = _segment(random_, channel, run, range(step, step + count), token)
                    step += count


def _segment(
    random_: random.Random, channel: grpc.Channel, run: Run, steps: range, token: bytes
) -> bytes:
    """Read steps on some ranks, in a random order, and return the token after the last."""
    world_size = random_.choice([n for n in (1, 2, 3, 7) if n <= run.plan.global_batch_size])
    tokens = set()
    for rank in random_.sample(range(world_size), world_size):
        request = pb.ReadBatchesRequest(rank=rank, world_size=world_size)
        request.MergeFrom(run.request)
        if token:
            request.resume_token = token
        else:
            request.epoch_start.epoch = run.first_epoch
        seen = transcript(_batches(messages_of(channel, request), len(steps)))
        found = [batch.values["number"] for batch in seen.batches]

        wanted = [run.wanted(step, rank=rank, world_size=world_size) for step in steps]
        assert list(steps) == [batch.header.step for batch in seen.batches]
        assert wanted == found
        tokens.add(seen.tokens[-1])
    (after,) = tokens
    return after


def _batches(messages: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield the messages of the first batches of a stream, and leave the rest."""
    left, missing = count, 0
    for outer in messages:
        for message in outer.messages or [outer]:
            event = message.WhichOneof("event")
            if event == "batch":
                missing = message.batch.payload_bytes
            if event in {"batch", "chunk"}:
                missing -= len(message.payload)
                left -= 0 if missing else 1
            yield message
            if not left:
                return


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 50))]
)
def test_a_history_sends_what_the_order_says(seed: int, stored: dict[str, Stored]) -> None:
    """Each rank's samples at each step, however often servers and trainers were stopped."""
    random_ = random.Random(seed)
    drawn = iter(lambda: _run(random_, stored), None)
    run = next(run for run in drawn if run.plan.batch_count)

    _live(random_, run, stored)
