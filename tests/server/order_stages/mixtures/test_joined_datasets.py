"""Where the samples of several datasets lie, however many of them have been drawn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.order_stages.mixtures.joined_datasets import JoinedDatasets
from headrace.storage import OpenDataset, open_dataset
from support.datasets import small_table, write_dataset

_SIZES = (1, 7, 40, 133)
_BLOCK_BYTES = (64, 400, 1 << 20)
_COUNT = 24


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> list[OpenDataset]:
    """Datasets of some sizes, in small and in large blocks."""
    folder = tmp_path_factory.mktemp("joined")
    return [
        _dataset(folder / f"{size}-{width}", size, width)
        for size in _SIZES
        for width in _BLOCK_BYTES
    ]


def _dataset(folder: Path, size: int, block_bytes: int) -> OpenDataset:
    write_dataset(str(folder), small_table(size), shard_samples=[size], block_bytes=block_bytes)
    return open_dataset(str(folder))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rare=st.sampled_from([0.0, 0.3, 0.9, 1.0]))
def test_each_sample_is_where_its_own_dataset_says(
    kinds: list[OpenDataset], seed: int, rare: float
) -> None:
    """From the first lookup on, and where some datasets are drawn from late or never."""
    chance = np.random.default_rng(seed)
    datasets = [kinds[kind] for kind in chance.integers(len(kinds), size=_COUNT)]
    joined = JoinedDatasets(datasets, "f" * 32)
    often = np.flatnonzero(chance.random(_COUNT) >= rare)
    for last in range(12):
        owners = chance.choice(often if often.size and last < 10 else _COUNT, size=9)
        own = np.array([chance.integers(datasets[owner].sample_count) for owner in owners])

        blocks, offsets = joined.locate(joined.first_ids[owners] + own)

        for place, owner in enumerate(owners):
            found = datasets[owner].locate(own[place : place + 1])
            first = joined.first_blocks[owner]
            assert (found[0][0] + first, found[1][0]) == (blocks[place], offsets[place])


def test_tables_of_datasets_that_nobody_draws_from_are_not_read(tmp_path: Path) -> None:
    """They may lie in a store that is far away; here one is gone."""
    datasets = [_dataset(tmp_path / str(number), 40, 64) for number in range(4)]
    for table in (tmp_path / "3").rglob("*"):
        if table.is_file():
            table.unlink()
    joined = JoinedDatasets(datasets, "f" * 32)
    for _ in range(5):
        blocks, _ = joined.locate(np.arange(3 * 40))

    assert int(joined.first_blocks[3]) - 1 == blocks.max()
