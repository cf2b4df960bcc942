"""Claims about how well the order shuffles; docs/shuffle-quality.md has the measurements."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.bench_order_quality import (
    Quality,
    block_shuffle,
    full_permutation,
    headrace_order,
    measure,
)
from headrace.order import Order, OrderSpec, ShardTable

_SAMPLES, _SHARD = 1_000_000, 2_000


def _quality(sample_ids: NDArray[np.int64]) -> Quality:
    return measure(sample_ids, shard_samples=_SHARD, labels=100, batch_size=256)


def _order(spec: OrderSpec, sample_bytes: int = 3000) -> NDArray[np.int64]:
    return headrace_order(spec, samples=_SAMPLES, shard_samples=_SHARD, sample_bytes=sample_bytes)


def test_the_whole_epoch_is_as_good_as_a_full_permutation() -> None:
    """With `window=0` nothing tells the order from a full permutation."""
    full, ours = _quality(full_permutation(_SAMPLES)), _quality(_order(OrderSpec(window=0)))

    assert full.neighbours == pytest.approx(ours.neighbours, rel=0.01)
    assert full.shards == pytest.approx(ours.shards, rel=0.01)
    assert full.labels == pytest.approx(ours.labels, rel=0.05)


@pytest.mark.parametrize("window", [1 << 14, 1 << 16])
def test_sorted_storage_does_not_show(window: int) -> None:
    """On data sorted by label batches vary far less than with blocks of the same size."""
    ours = _quality(_order(OrderSpec(window=window)))
    blocks = _quality(block_shuffle(_SAMPLES, _SHARD, window))

    assert ours.labels < 3.5
    assert ours.labels < blocks.labels / 2.5
    assert ours.shards > 2.5 * blocks.shards


@pytest.mark.parametrize("sample_bytes", [100, 1_000_000])
def test_defaults_mix_small_and_large_samples(sample_bytes: int) -> None:
    """The default windows mix more than a hundred places into a batch of 256."""
    ours = _quality(_order(OrderSpec(), sample_bytes))

    assert ours.labels < 3.5
    assert ours.shards * 200 > 75


def test_the_ramp_mixes_too() -> None:
    """The first batches of an epoch have samples of many places."""
    sample_ids = _order(OrderSpec(window=1 << 14))[:1024].reshape(4, 256)

    assert all(len(np.unique(batch // _SHARD)) > 30 for batch in sample_ids)


def test_no_sample_is_early_because_of_its_place() -> None:
    """Over many epochs a sample's mean position does not depend on its place in its shard."""
    counts = np.full(50, 200)
    order = Order(OrderSpec(window=1000), ShardTable(counts, counts))
    positions = np.empty((200, 10_000))
    for epoch in range(200):
        positions[epoch, order.sample_ids(epoch, 0, 10_000)] = np.arange(10_000)

    by_place = positions.reshape(200, 50, 200).mean(axis=(0, 1))
    error = 10_000 / np.sqrt(12 * 200 * 50)

    assert np.abs(by_place - 4999.5).max() < 5 * error


@pytest.mark.parametrize(
    ("spec", "other", "epoch"),
    [(OrderSpec(seed=42), OrderSpec(seed=43), 0), (OrderSpec(seed=42), OrderSpec(seed=42), 1)],
)
@pytest.mark.parametrize("window", [0, 1 << 14, 1 << 20])
def test_neighbouring_seeds_and_epochs_share_nothing(
    spec: OrderSpec, other: OrderSpec, epoch: int, window: int
) -> None:
    """Orders of adjacent seeds or epochs agree in as few places as strangers do."""
    counts = np.full(500, 200)
    table = ShardTable(counts, counts)
    size = 100_000
    specs = [OrderSpec(seed=each.seed, window=window) for each in (spec, other)]
    ours = Order(specs[0], table).sample_ids(0, 0, size)
    theirs = Order(specs[1], table).sample_ids(epoch, 0, size)

    followers, places = np.empty((2, size), np.int64), np.empty((2, size), np.int64)
    for row, ids in enumerate((ours, theirs)):
        followers[row, ids], places[row, ids] = np.roll(ids, -1), np.arange(size)

    assert (ours == theirs).sum() < 15
    assert (followers[0] == followers[1]).sum() < 100
    correlation = ((places[0] / size - 0.5) * (places[1] / size - 0.5)).mean() * 12
    assert abs(correlation) < 0.02


def test_seed_and_epoch_do_not_add_up() -> None:
    """(seed 42, epoch 1) is not (seed 43, epoch 0), as a sum of both would make it."""
    counts = np.full(10, 100)
    table = ShardTable(counts, counts)

    ours = Order(OrderSpec(seed=42), table).sample_ids(1, 0, 1000)

    assert ours.tolist() != Order(OrderSpec(seed=43), table).sample_ids(0, 0, 1000).tolist()
