"""Epochs are shuffled as well at their start as later, and a run's first batch comes early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bench_order_absence import even_table, sorted_labels
from benchmarks.bench_order_quality import start_labels
from headrace.cli.stored.evenness import measure
from headrace.order import Order, OrderSpec, ShardTable, decode_token, encode_token
from headrace.order.token.token import Token

_MIB = 1 << 20
_TABLES = {
    "rows": even_table(12_000_000, sample_bytes=168, shard_bytes=64 * _MIB),
    "texts": even_table(600_000, sample_bytes=3_000, shard_bytes=64 * _MIB),
    "images": even_table(18_000, sample_bytes=110_000, shard_bytes=64 * _MIB),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("epoch", "ramp"), [(1, True), (7, True), (0, False)])
def test_the_first_batches_of_an_epoch_have_as_many_labels_as_later_ones(
    *, seed: int, epoch: int, ramp: bool
) -> None:
    """Of sorted images, 1,024 have at least 530 of 1,000 labels; uniform ones have 641."""
    found = start_labels(OrderSpec(seed=seed, ramp=ramp), epoch=epoch)

    assert min(found) >= 530, found


@pytest.mark.parametrize("kind", _TABLES)
def test_a_table_that_fits_is_read_in_part_before_the_first_batch(kind: str) -> None:
    """Whatever the samples, a batch of up to 8 MiB takes at most 64 MiB of nearly 2 GiB."""
    order = Order(OrderSpec(seed=5), _TABLES[kind])
    count = 8 * _MIB // (int(order.table.raw_bytes[0]) // int(order.table.sample_counts[0]))

    assert order.memory_samples == order.sample_count
    assert _read_bytes(order, 0, count) <= 64 * _MIB
    assert _read_bytes(order, 1, count) > 512 * _MIB or kind == "images"


def _read_bytes(order: Order, epoch: int, count: int) -> int:
    # The raw bytes of the blocks that hold the first samples of an epoch.
    table = order.table
    assert table.block_samples is not None
    ids = order.sample_ids(epoch, 0, count)
    starts = np.cumsum(table.sample_counts) - table.sample_counts
    shards = np.searchsorted(starts, ids, side="right") - 1
    blocks = (ids - starts[shards]) // table.block_samples[shards]
    read = np.unique(np.stack([shards, blocks]), axis=1)
    sizes = table.block_samples * (table.raw_bytes // table.sample_counts)
    return int(sizes[read[0]].sum())


@pytest.mark.parametrize(("epoch", "ramp"), [(0, False), (1, True), (1, False)])
def test_a_table_that_fits_is_one_uniform_permutation(*, epoch: int, ramp: bool) -> None:
    """In epoch 0 without the ramp, and in all others: every sample is as likely anywhere."""
    table = even_table(4_000, sample_bytes=110_000, shard_bytes=64 * _MIB)
    places = np.stack([_places(OrderSpec(seed=s, ramp=ramp), table, epoch) for s in range(60)])

    assert _first_and_last_steps(OrderSpec(seed=1, ramp=ramp), table, epoch) == [(0, 4_000)]
    # The mean place of a sample has a standard deviation of 149.
    assert np.abs(places.mean(axis=0) - 1999.5).max() < 5 * 149


def _places(spec: OrderSpec, table: ShardTable, epoch: int) -> NDArray[np.int64]:
    return Order(spec, table).positions(epoch, np.arange(table.sample_count))


def _first_and_last_steps(spec: OrderSpec, table: ShardTable, epoch: int) -> list[tuple[int, int]]:
    order = Order(spec, table)
    steps = [order.step(epoch, 0, place) for place in (0, table.sample_count - 1)]
    found = {(step.start, step.count) for step in steps if step is not None}
    return sorted(found)


def test_a_small_table_is_uniform_in_epoch_0_too() -> None:
    """A ramp starts with eight runs, so a table of fewer than 32 has none."""
    runs_31 = ShardTable(np.full(31, 20), np.full(31, 2 * _MIB), np.full(31, 20))
    runs_32 = ShardTable(np.full(32, 20), np.full(32, 2 * _MIB), np.full(32, 20))

    assert _first_and_last_steps(OrderSpec(), runs_31, 0) == [(0, 620)]
    assert _first_and_last_steps(OrderSpec(), runs_32, 0) == [(0, 160), (320, 320)]


def test_eight_lanes_have_the_variance_that_is_promised() -> None:
    """At most 1.2, 1.7 and 2.9 times that of a uniform permutation, in any epoch after the first.

    The data is that of the promise, scaled down to 10^6 samples.
    """
    table = even_table(1_000_000, sample_bytes=110_000, shard_bytes=64 * _MIB)
    order = Order(OrderSpec(seed=1, lanes=8, unit=1024), table)

    labels = sorted_labels(1_000_000, np.ones(1000))[order.sample_ids(1, 0, 1_000_000)]

    assert (np.array(measure(labels).variances) <= (1.2, 1.7, 2.9)).all()


@pytest.mark.parametrize("ramp", [True, False])
def test_a_token_holds_whether_there_is_a_ramp(*, ramp: bool) -> None:
    """A run that resumes in epoch 0 continues with the same samples."""
    token = Token("ab" * 16, OrderSpec(ramp=ramp), 0, 512, 256, 2, 512)
    other = replace(token, spec=OrderSpec(ramp=not ramp))

    assert decode_token(encode_token(token)).spec.ramp is ramp
    assert encode_token(token) != encode_token(other)
