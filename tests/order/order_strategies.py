"""Hypothesis strategies for shard tables, specs and ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from headrace.errors import BadArgumentError
from headrace.order import (
    Batching,
    Choice,
    EndMode,
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    Order,
    OrderSpec,
    Schedule,
    ShardTable,
    Skips,
    linear,
    piecewise,
)

seeds = st.integers(0, 2**63 - 1)
end_modes = st.sampled_from(EndMode)


@st.composite
def tables(draw: st.DrawFn, *, max_shards: int = 30) -> ShardTable:
    """Draw a shard table with empty, small and large shards, of even blocks, others or none."""
    sizes = st.one_of(st.just(0), st.integers(1, 20), st.integers(1, 600))
    counts = np.array(draw(st.lists(sizes, max_size=max_shards)), np.int64)
    sample_bytes = draw(st.sampled_from([0, 1, 700, 100_000]))
    # A shard that can only be read whole is one block.
    blocks = draw(st.none() | st.integers(0, 40) | st.just(1 << 20))
    return ShardTable(
        counts,
        counts * sample_bytes,
        block_samples=None if blocks is None else np.minimum(counts, blocks),
    )


@st.composite
def specs(draw: st.DrawFn) -> OrderSpec:
    """Draw a spec, with a memory far smaller than the default."""
    lanes = draw(st.sampled_from([1, 1, 2, 3, 8]))
    return OrderSpec(
        seed=draw(seeds),
        shuffle=draw(st.sampled_from([True, True, True, False])),
        run_bytes=draw(st.sampled_from([1, 1000, 10**5, 10**6])),
        shuffle_bytes=draw(st.sampled_from([0, 1000, 10**6, 10**7])),
        shuffle_samples=draw(st.sampled_from([0, 1, 16, 100, 2000])),
        lanes=lanes,
        unit=draw(st.sampled_from([8, 10, 64, 257])),
        ramp=draw(st.booleans()),
    )


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Draw an order of up to some thousand samples, with even, uneven or whole blocks."""
    counts = np.array(draw(st.lists(st.integers(0, 400), min_size=1, max_size=40)), np.int64)
    sizes = np.array(
        draw(st.lists(st.integers(0, 900), min_size=len(counts), max_size=len(counts)))
    )
    # A shard that can only be read whole is one block.
    blocks = draw(st.none() | st.integers(0, 40) | st.just(1 << 20))
    table = ShardTable(
        counts,
        counts * sizes,
        block_samples=None if blocks is None else np.minimum(counts, blocks),
    )
    lanes = draw(st.integers(1, 5))
    spec = OrderSpec(
        seed=draw(st.integers(0, 2**63 - 1)),
        shuffle=draw(st.booleans()),
        run_bytes=draw(st.integers(1, 20_000)),
        shuffle_bytes=draw(st.integers(0, 400_000)),
        shuffle_samples=draw(st.sampled_from([0, 1, 7, 100, 2000])),
        lanes=lanes,
        unit=draw(st.integers(lanes, 300)),
        ramp=draw(st.booleans()),
    )
    return Order(spec, table)


@st.composite
def skip_lists(draw: st.DrawFn, count: int) -> list[int]:
    """Draw ids to skip of a dataset of some samples: single ones and stretches, never all."""
    if count < 2:
        return []
    ids = set(draw(st.lists(st.integers(0, count - 1), max_size=8)))
    for _ in range(draw(st.integers(0, 2))):
        first = draw(st.integers(0, count - 1))
        ids |= set(range(first, draw(st.integers(first, count))))
    return sorted(ids - {draw(st.integers(0, count - 1))})


_amounts = st.one_of(
    st.just({}),
    st.builds(lambda repeat: {"repeat": repeat}, st.sampled_from([0.3, 1.0, 2.5])),
    st.builds(lambda choose: {"choose": choose}, st.integers(0, 60)),
)
_fixed_amounts = st.builds(
    lambda choose, granularity: {
        "choose": choose,
        "choice": Choice.FIXED,
        "granularity": granularity,
    },
    st.integers(0, 60),
    st.sampled_from([1, 3, 10]),
)


@dataclass(frozen=True)
class MixtureParts:
    """What a mixture has beside the options of its order."""

    datasets: tuple[MixtureDataset, ...]
    epoch_size: int
    schedule: Schedule | None


@st.composite
def mixture_parts(draw: st.DrawFn) -> MixtureParts:
    """Draw the datasets of a mixture, with their amounts or a schedule."""
    count = draw(st.integers(1, 5))
    weights = st.lists(st.floats(0, 9) | st.just(1.0), min_size=count, max_size=count)
    weights = weights.filter(lambda drawn: max(drawn) > 1e-3)
    mode = draw(st.sampled_from(["amounts", "proportions", "piecewise", "linear"]))
    amounts: list[dict[str, Any]] = [{}] * count
    schedule = None
    if mode == "amounts":
        amounts = [draw(st.one_of(_amounts, _fixed_amounts)) for _ in range(count)]
    elif mode == "proportions":
        amounts = [{"proportion": weight} for weight in draw(weights)]
    elif mode == "piecewise":
        schedule = piecewise([0, 70, 700], [draw(weights) for _ in range(3)])
    else:
        schedule = linear([0, 1500], [draw(weights) for _ in range(2)])
    datasets = tuple(
        MixtureDataset(f"d{number}", f"{number:032x}", **amount)
        for number, amount in enumerate(amounts)
    )
    epoch_size = 0 if mode == "amounts" else draw(st.sampled_from([0, 200, 700]))
    return MixtureParts(datasets, epoch_size, schedule)


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[MixtureSpec, list[ShardTable]]:
    """Draw a mixture of a few small datasets and their tables."""
    parts = draw(mixture_parts())
    spec = MixtureSpec(
        parts.datasets,
        draw(specs()),
        draw(st.sampled_from(Batching)),
        parts.epoch_size,
        parts.schedule,
    )
    return spec, [draw(_small_tables()) for _ in parts.datasets]


@st.composite
def _small_tables(draw: st.DrawFn) -> ShardTable:
    sizes = st.lists(st.sampled_from([0, 1, 5, 30, 120]), max_size=4)
    counts = np.array([*draw(sizes), draw(st.integers(1, 50))], np.int64)
    blocks = draw(st.sampled_from([0, 1, 7, 1 << 20]))
    return ShardTable(
        counts,
        counts * draw(st.sampled_from([0, 1, 100_000])),
        np.minimum(counts, blocks),
    )


def without(spec: MixtureSpec, tables: list[ShardTable], skips: list[Skips]) -> MixtureOrder:
    """Return the order of a drawn mixture without some samples; some must be left."""
    try:
        return MixtureOrder(spec, tables, skips=skips)
    except BadArgumentError as error:
        # All that a fixed choice has chosen may happen to be skipped.
        assume("skips contain all" not in error.message)
        raise
