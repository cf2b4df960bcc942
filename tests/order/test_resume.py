"""Claims about resuming: any place, any world size, any batch size, mixtures too."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.order import (
    EndMode,
    EpochPlan,
    MixtureOrder,
    MixtureSpec,
    Order,
    OrderSpec,
    RankBatch,
    ShardTable,
    Token,
    decode_token,
    encode_token,
    rank_batches,
)
from order.order_strategies import end_modes, mixtures, specs, tables

_Batches = list[tuple[RankBatch, list[int]]]
_worlds = st.integers(1, 12)


def _run(order: Order | MixtureOrder, plan: EpochPlan, world_size: int) -> list[_Batches]:
    """Return what the ranks get."""
    return [
        [
            (batch, sample_ids.tolist())
            for batch, sample_ids in rank_batches(
                order, plan, epoch=2, rank=rank, world_size=world_size
            )
        ]
        for rank in range(world_size)
    ]


def _global_batches(run: list[_Batches]) -> list[list[int]]:
    """Return each global batch without repeats, in the order of ranks."""
    return [
        [
            sample_id
            for batch, sample_ids in parts
            for sample_id in sample_ids[: batch.stop - batch.start]
        ]
        for parts in zip(*run, strict=True)
    ]


@given(
    dataset=st.tuples(specs(), tables(max_shards=8)),
    worlds=st.tuples(_worlds, _worlds),
    end=end_modes,
    sizes=st.tuples(st.integers(12, 40), st.integers(12, 40)),
    stop=st.integers(0, 200),
)
@settings(max_examples=60)
def test_rescaling_loses_and_repeats_nothing(
    dataset: tuple[OrderSpec, ShardTable],
    worlds: tuple[int, int],
    end: EndMode,
    sizes: tuple[int, int],
    stop: int,
) -> None:
    """A run that stops anywhere goes on with other ranks and batches, through its token."""
    (spec, table), (before, after) = dataset, worlds
    count = table.sample_count
    whole = Order(spec, table).sample_ids(2, 0, count).tolist()
    first = _global_batches(_run(Order(spec, table), EpochPlan(count, 0, sizes[0], end), before))
    seen = first[: min(stop, len(first))]
    position = sum(map(len, seen))
    token = decode_token(
        encode_token(Token(32 * "a", spec, 2, position, sizes[0], len(seen), position))
    )

    plan = EpochPlan(count, token.position, sizes[1], end)
    run = _run(Order(token.spec, table), plan, after)
    joined = [sample_id for batch in seen + _global_batches(run) for sample_id in batch]

    assert whole[: count - plan.dropped] == joined
    if end is EndMode.PAD:
        assert all(
            sizes[1] == sum(b.sample_count for b, _ in parts) for parts in zip(*run, strict=True)
        )


@given(
    case=mixtures(),
    before=_worlds,
    after=_worlds,
    batch_size=st.integers(12, 40),
    cut=st.floats(0, 1),
)
@settings(max_examples=40)
def test_rescaling_in_a_mixture_loses_and_repeats_nothing(
    case: tuple[MixtureSpec, list[ShardTable]],
    before: int,
    after: int,
    batch_size: int,
    cut: float,
) -> None:
    """The same in the middle of a mixture, whatever its schedule."""
    order = MixtureOrder(*case)
    count = order.sample_count
    whole = Counter(order.sample_ids(2, 0, count).tolist())
    first = _global_batches(_run(order, EpochPlan(count, 0, batch_size, EndMode.UNEVEN), before))
    seen = first[: int(cut * len(first))]

    plan = EpochPlan(count, sum(map(len, seen)), batch_size, EndMode.UNEVEN)
    rest = _global_batches(_run(MixtureOrder(*case), plan, after))

    assert first == seen + rest
    assert whole == Counter(sample_id for batch in seen + rest for sample_id in batch)


@given(world_size=st.integers(1, 64))
def test_global_batches_are_the_same_for_every_world_size(world_size: int) -> None:
    """Sample by sample, whether or not the world size divides the batch."""
    counts = np.full(10, 30)
    order = Order(OrderSpec(shuffle_samples=50), ShardTable(counts, counts))
    plan = EpochPlan(300, 0, 64, EndMode.UNEVEN)

    wanted = _global_batches(_run(order, plan, 1))

    assert wanted == _global_batches(_run(order, plan, world_size))
