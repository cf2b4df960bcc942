"""Claims about windows: their bounds, their ramp and what they mix."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import Order, OrderSpec, ShardTable
from headrace.order._bands import Bands, find_bands, find_lanes, make_bands
from headrace.order._hash import derive
from headrace.order._layout import shuffled_layouts
from headrace.order._parts import make_parts
from headrace.order._shape import ONE_DATASET


def _bands(spec: OrderSpec, table: ShardTable) -> list[Bands]:
    """Work out all bands of the first epoch."""
    parts = make_parts(spec, [table], ONE_DATASET)
    zero = np.zeros(1, np.int64)
    layout = shuffled_layouts(parts, zero, np.array([derive(0, spec.seed)], np.uint64))
    lanes = find_lanes(layout, zero, zero, np.array([table.sample_count]))
    bands, offset = [], 0
    while offset < table.sample_count:
        place = find_bands(layout, lanes, zero, np.array([offset]))
        keys = np.array([derive(1, offset)], np.uint64)
        bands.append(make_bands(spec, ONE_DATASET, layout, place, run_keys=keys))
        offset = int(place.stops[0])
    return bands


def _table(counts: NDArray[np.int64], sample_bytes: int = 100) -> ShardTable:
    return ShardTable(counts, counts * sample_bytes)


def _random_counts(shards: int, largest: int) -> NDArray[np.int64]:
    return np.random.default_rng(3).integers(0, largest, shards)


@pytest.mark.parametrize("largest", [50, 3000, 200_000])
@pytest.mark.parametrize(("window", "window_bytes"), [(10_000, 0), (10**6, 400_000)])
def test_limits_are_passed_by_one_run_at_most(largest: int, window: int, window_bytes: int) -> None:
    """No window has more samples or bytes than its limit and one run more."""
    spec = OrderSpec(window=window, window_bytes=window_bytes)
    limit = min(window, window_bytes // 100 if window_bytes else window)

    for band in _bands(spec, _table(_random_counts(300, largest))):
        run = int(np.diff(band.run_starts).max())

        assert run <= limit // 256 + 1
        assert np.diff(band.window_starts).max() <= limit + run


def test_windows_of_a_band_are_even() -> None:
    """No window is left over small, except for the ramp."""
    spec = OrderSpec(window=10_000, window_bytes=0)

    bands = _bands(spec, _table(_random_counts(2000, 3000)))
    sizes = np.concatenate([np.diff(band.window_starts) for band in bands[1:]])

    assert len(bands) > 5
    assert sizes.min() > 7_000


def test_the_first_windows_double() -> None:
    """A cold start needs a sixteenth of a window, and finds 64 places in it."""
    spec = OrderSpec(window=10_000, window_bytes=0)

    first = _bands(spec, _table(_random_counts(2000, 3000)))[0]
    sizes = np.diff(first.window_starts)[:6]
    runs = np.searchsorted(first.run_starts, first.window_starts[1])

    assert np.allclose(
        sizes[:5] / sizes[:5].sum(), [1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2], atol=0.01
    )
    assert sizes[:5].sum() == pytest.approx(sizes[5], rel=0.05)
    assert runs >= 64


def test_a_dataset_of_one_window_is_shuffled_fully() -> None:
    """A dataset that fits a window has no ramp."""
    bands = _bands(OrderSpec(window=10_000, window_bytes=0), _table(_random_counts(10, 1000)))

    assert 1 == len(bands)
    assert 2 == len(bands[0].window_starts)


def test_whole_shards_stay_whole() -> None:
    """Without range reads every run is a shard."""
    counts = _random_counts(500, 3000)
    table = ShardTable(counts, counts, range_reads=False)

    bands = _bands(OrderSpec(window=1000), table)
    runs = np.concatenate([np.diff(band.run_starts) for band in bands[1:]])

    assert set(runs.tolist()) <= set(counts.tolist())


def test_a_single_shard_is_mixed_like_many() -> None:
    """A window of a dataset in one shard has samples from all over it."""
    order = Order(OrderSpec(window=10_000), _table(np.array([10**7])))

    sample_ids = order.sample_ids(0, 5 * 10**6, 5 * 10**6 + 5000)

    assert len(np.unique(sample_ids // 100_000)) > 50


def test_windows_without_number_are_refused() -> None:
    """A window far too small for the dataset is refused, not worked on for hours."""
    table = ShardTable(np.array([10**12]), np.array([2**41]))

    with pytest.raises(BadArgumentError, match="take a larger window"):
        Order(OrderSpec(window=10, window_bytes=1), table)


@pytest.mark.parametrize("counts", [[-1], [2**42], [2**41] * 2])
def test_tables_that_cannot_be_are_refused(counts: list[int]) -> None:
    """Negative counts and sums past 2**42 are refused."""
    with pytest.raises(BadArgumentError, match="sample_counts"):
        _table(np.array(counts), 0)
