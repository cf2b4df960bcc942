"""Claims about finding the span that holds an ordinal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.source.prefix_search import Starts


@given(
    lengths=st.lists(st.integers(0, 50) | st.just(100_000), min_size=1, max_size=300),
    first=st.integers(0, 2**40),
    seed=st.integers(0, 2**32),
)
def test_the_table_finds_what_halving_finds(lengths: list[int], first: int, seed: int) -> None:
    """Spans of any lengths, empty ones too, are found for many ordinals as for few."""
    starts = first + np.concatenate([[0], np.cumsum(lengths)])
    if starts[-1] == first:
        starts[-1] += 1
    ordinals = np.random.default_rng(seed).integers(first, starts[-1], 2000)
    ordinals[:2] = first, starts[-1] - 1

    found = Starts(starts).find(ordinals)

    wanted = np.searchsorted(starts, ordinals, side="right") - 1
    assert wanted.tolist() == found.tolist()
    assert wanted[:9].tolist() == Starts(starts).find(ordinals[:9]).tolist()


@pytest.mark.parametrize("spans", [1, 4096])
def test_the_table_is_small(spans: int) -> None:
    """It takes at most four numbers of one or two bytes a span."""
    starts = np.arange(spans + 1) * 6241

    assert Starts(starts).nbytes - starts.nbytes <= 2 * (4 * spans + 4)
