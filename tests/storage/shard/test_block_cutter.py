"""Blocks of a shard are even, bounded, and the same however the samples arrive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage import BlockCutter, Cut
from headrace.storage.shard.block_cutter import MOST_TIMES, even_starts

_OFFSET_BYTES = 4


def _batch(sizes: Sequence[int]) -> pa.RecordBatch:
    texts = [bytes(size - _OFFSET_BYTES) for size in sizes]
    return pa.RecordBatch.from_pydict({"x": pa.array(texts, pa.binary())})


def _cuts(cutter: BlockCutter, batches: Sequence[pa.RecordBatch]) -> list[Cut]:
    return [*itertools.chain(*(cutter.append(batch) for batch in batches)), *cutter.close()]


def _shards(cuts: Sequence[Cut]) -> list[list[int]]:
    shards: list[list[int]] = []
    for cut in cuts:
        if cut.starts_shard:
            shards.append([])
        shards[-1].append(sum(batch.num_rows for batch in cut.batches))
    return shards


_SIZES = st.lists(
    st.tuples(st.integers(4, 40) | st.integers(4, 3000), st.integers(1, 40)).map(
        lambda run: [run[0]] * run[1]
    ),
    min_size=1,
    max_size=12,
).map(lambda runs: list(itertools.chain(*runs)))


@settings(max_examples=150, deadline=None)
@given(
    sizes=_SIZES,
    step=st.integers(1, 50),
    block_bytes=st.integers(1, 600),
    shard_bytes=st.none() | st.integers(600, 6000),
)
def test_blocks_are_even_and_bounded(
    sizes: list[int], step: int, block_bytes: int, shard_bytes: int | None
) -> None:
    """All blocks of a shard but the last have as many samples, and none is far too large."""
    whole = _cuts(BlockCutter(block_bytes=block_bytes, shard_bytes=shard_bytes), [_batch(sizes)])
    parts = [_batch(sizes[at : at + step]) for at in range(0, len(sizes), step)]
    cuts = _cuts(BlockCutter(block_bytes=block_bytes, shard_bytes=shard_bytes), parts)
    shards = _shards(cuts)

    assert _shards(whole) == shards
    assert len(sizes) == sum(itertools.chain(*shards))
    for blocks in shards:
        assert 1 == len({*blocks[:-1], max(blocks)})
    start = 0
    for cut, count in zip(cuts, itertools.chain(*shards), strict=True):
        block = sizes[start : start + count]
        assert sum(block) == cut.raw_bytes
        assert sum(block) - max(block) <= MOST_TIMES * block_bytes
        start += count
    if shard_bytes is not None:
        ends = np.cumsum([0, *itertools.chain([sum(blocks) for blocks in shards])])
        for first, last in itertools.pairwise(ends.tolist()):
            assert last - first == 1 or sum(sizes[first:last]) <= shard_bytes


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("texts", 0.85, 1.15), ("images", 0.7, 1.4), ("rows", 0.9, 1.0)],
)
def test_blocks_have_about_the_bytes_asked_for(name: str, low: float, high: float) -> None:
    """Texts of 3 kB, images of 110 kB, rows of 16 B; scaled to blocks of 16 KiB for images."""
    rng = np.random.default_rng(1)
    sizes = {
        "texts": rng.lognormal(7.6, 0.9, 20_000).astype(np.int64) // 8 + 8,
        "images": rng.normal(1800, 400, 20_000).clip(200).astype(np.int64),
        "rows": np.full(50_000, 16),
    }[name]
    block_bytes = 1 << 14 if name == "images" else 1 << 17
    cuts = _cuts(
        BlockCutter(block_bytes=block_bytes, shard_bytes=64 * block_bytes), [_batch(sizes.tolist())]
    )
    shards = _shards(cuts)
    full = [cut.raw_bytes / block_bytes for cut in cuts][:-1]

    assert low <= np.quantile(full, 0.02) <= np.quantile(full, 0.98) <= high
    assert 1 == len({max(blocks) for blocks in shards})
    assert all(60 <= len(blocks) <= 64 for blocks in shards[:-1])


def test_a_shard_ends_where_sizes_change() -> None:
    """Samples that grow by a thousand end a shard, those that shrink as well."""
    sizes = [10] * 3000 + [10_000] * 60 + [10] * 6000
    cuts = _cuts(BlockCutter(block_bytes=1000, shard_bytes=1 << 20), [_batch(sizes)])
    shards = _shards(cuts)

    assert all(max(blocks) == blocks[0] for blocks in shards)
    assert max(cut.raw_bytes for cut in cuts) <= 4 * 1000 + 10_000
    assert 1 == max(shards[1])
    assert 100 == max(shards[-1])
    assert 3 == len(shards)


def test_one_large_sample_leaves_the_blocks_around_it_as_they_are() -> None:
    """A sample of 40 blocks between small ones is in a block with its neighbours."""
    sizes = [10] * 500 + [40_000] + [10] * 500
    cuts = _cuts(BlockCutter(block_bytes=1000, shard_bytes=1 << 20), [_batch(sizes)])

    assert 1 == len(_shards(cuts))


def test_even_starts_cut_known_samples() -> None:
    """A whole shard is cut evenly, or not at all where one block would be far too large."""
    even = even_starts(np.full(100, 10), block_bytes=95)

    assert even is not None
    assert [0, 9, 18] == even[:3].tolist()
    assert 100 == even[-1]
    assert even_starts(np.array([10] * 990 + [900] * 10), block_bytes=1000) is None
