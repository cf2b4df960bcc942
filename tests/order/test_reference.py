"""Claims that the package does what docs/order.md says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.order import MixtureOrder, MixtureSpec, Order, OrderSpec, ShardTable, Skips
from order import reference
from order.order_strategies import mixtures, skip_lists, specs, tables
from order.reference_mixture import mixture_epoch


@given(spec=specs(), table=tables(max_shards=12), epoch=st.integers(0, 2**62 - 1))
@settings(max_examples=100)
def test_one_dataset_is_as_written(spec: OrderSpec, table: ShardTable, epoch: int) -> None:
    """The vectorised order equals the plain one that follows the document."""
    shards = list(zip(table.sample_counts.tolist(), table.raw_bytes.tolist(), strict=True))

    wanted = reference.epoch_ids(spec, shards, range_reads=table.range_reads, epoch=epoch)

    assert wanted == Order(spec, table).sample_ids(epoch, 0, len(wanted)).tolist()


@pytest.mark.parametrize("window", [300, 5000])
def test_many_bands_are_as_written(window: int) -> None:
    """So does a dataset of several bands, a ramp and shards larger than a window."""
    shards = [(count % 97, 50 * count) for count in range(700)] + [(20_000, 10**6)]
    spec = OrderSpec(seed=3, window=window, window_bytes=10**6, lanes=2, unit=9)
    table = reference_table(shards)

    wanted = reference.epoch_ids(spec, shards, range_reads=True, epoch=5)

    assert wanted == Order(spec, table).sample_ids(5, 0, len(wanted)).tolist()


@given(case=mixtures(), epoch=st.integers(0, 40))
@settings(max_examples=100)
def test_mixtures_are_as_written(case: tuple[MixtureSpec, list[ShardTable]], epoch: int) -> None:
    """The vectorised mixture equals the plain one that follows the document."""
    spec, shard_tables = case

    wanted = mixture_epoch(spec, shard_tables, epoch)

    datasets, sample_ids = MixtureOrder(spec, shard_tables).samples(epoch, 0, len(wanted))
    assert wanted == list(zip(datasets.tolist(), sample_ids.tolist(), strict=True))


@given(spec=specs(), table=tables(max_shards=6), skips=st.data())
@settings(max_examples=40)
def test_skips_are_as_written(spec: OrderSpec, table: ShardTable, skips: st.DataObject) -> None:
    """So are the samples that stand in the place of skipped ones, up to all but one skipped."""
    count = table.sample_count
    skipped = skips.draw(skip_lists(count))
    shards = list(zip(table.sample_counts.tolist(), table.raw_bytes.tolist(), strict=True))

    wanted = reference.epoch_ids(
        spec, shards, range_reads=table.range_reads, epoch=2, skips=frozenset(skipped)
    )

    order = Order(spec, table, skips=Skips(skipped))
    assert wanted == order.sample_ids(2, 0, count).tolist()


@given(case=mixtures(), skips=st.data())
@settings(max_examples=20)
def test_skips_of_mixtures_are_as_written(
    case: tuple[MixtureSpec, list[ShardTable]], skips: st.DataObject
) -> None:
    """So are those of mixtures, read from anywhere."""
    spec, shard_tables = case
    skipped = [skips.draw(skip_lists(table.sample_count)) for table in shard_tables]

    wanted = mixture_epoch(spec, shard_tables, 1, [frozenset(own) for own in skipped])

    order = MixtureOrder(spec, shard_tables, skips=[Skips(own) for own in skipped])
    start = skips.draw(st.integers(0, len(wanted)))
    datasets, sample_ids = order.samples(1, start, len(wanted))
    assert wanted[start:] == list(zip(datasets.tolist(), sample_ids.tolist(), strict=True))


def reference_table(shards: list[tuple[int, int]]) -> ShardTable:
    """Make a shard table of counts and bytes."""
    samples, raw = np.array(shards, np.int64).T
    return ShardTable(samples, raw)
