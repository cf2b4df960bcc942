"""How shards are cut into blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgumentError
from headrace.storage.mds.layout import BLOCK_BYTES, MdsLayout


def _layout(shards: list[tuple[int, int, bool]]) -> MdsLayout:
    columns = np.array(shards, np.int64).reshape(-1, 3)
    return MdsLayout(columns[:, 0], columns[:, 1], whole=columns[:, 2].astype(bool))


_SHARDS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20 * BLOCK_BYTES), st.booleans()), max_size=8
)


@given(_SHARDS)
def test_blocks_cover_every_sample_once(shards: list[tuple[int, int, bool]]) -> None:
    """The ranges of all blocks, one after another, are all samples in order."""
    layout = _layout(shards)
    ordinals, starts, stops = layout.sample_ranges(np.arange(layout.block_count))
    found = [
        layout.first_sample(int(shard)) + sample
        for shard, start, stop in zip(ordinals, starts, stops, strict=True)
        for sample in range(start, stop)
    ]

    assert list(range(layout.sample_count)) == found


@given(_SHARDS)
def test_locate_agrees_with_the_ranges(shards: list[tuple[int, int, bool]]) -> None:
    """Every sample is where its block's range says, and counts from the block's first."""
    layout = _layout(shards)
    blocks, offsets = layout.locate(np.arange(layout.sample_count))
    ordinals, starts, _ = layout.sample_ranges(blocks)
    firsts = np.array([layout.first_sample(int(shard)) for shard in ordinals], np.int64)

    assert list(range(layout.sample_count)) == (firsts + starts + offsets).tolist()
    assert (firsts + starts).tolist() == layout.first_samples(blocks).tolist()


@given(_SHARDS)
def test_a_shard_has_as_many_blocks_as_its_bytes_ask(shards: list[tuple[int, int, bool]]) -> None:
    """A whole shard has one block, another no more than its bytes hold, an empty one none."""
    layout = _layout(shards)
    found = np.bincount(layout.shards_of(np.arange(layout.block_count)), minlength=len(shards))
    for count, (samples, raw_bytes, whole) in zip(found.tolist(), shards, strict=True):
        most = 1 if whole else max(1, -(-raw_bytes // BLOCK_BYTES))

        assert min(samples, 1) <= count <= min(samples, most)


@pytest.mark.parametrize("sample", [-1, 10])
def test_a_sample_outside_is_refused(sample: int) -> None:
    """An id that no sample has is named with the range that there is."""
    with pytest.raises(BadArgumentError, match=rf"sample id {sample} is not in \[0, 10\)"):
        _layout([(10, 100, True)]).locate(np.array([0, sample]))
