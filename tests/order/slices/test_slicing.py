"""Claims about how an epoch is cut into global batches and ranks' slices, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgumentError, PositionPastEndError
from headrace.order import EndMode, EpochPlan, RankBatch, Row, find_rows
from order.order_strategies import end_modes


def _batches(plan: EpochPlan, rank: int, world_size: int) -> list[RankBatch]:
    return [
        plan.batch(index, rank=rank, world_size=world_size) for index in range(plan.batch_count)
    ]


@given(
    samples=st.integers(0, 300),
    base=st.integers(0, 300),
    extra=st.integers(0, 40),
    end=end_modes,
    world_size=st.integers(1, 12),
)
def test_ranks_are_disjoint_and_cover_the_epoch(
    samples: int, base: int, extra: int, end: EndMode, world_size: int
) -> None:
    """Over all ranks every position that is not dropped comes once, in the same global batches."""
    plan = EpochPlan(samples, min(base, samples), world_size + extra, end)

    by_rank = [_batches(plan, rank, world_size) for rank in range(world_size)]

    positions = [
        position
        for index in range(plan.batch_count)
        for rank in range(world_size)
        for position in range(by_rank[rank][index].start, by_rank[rank][index].stop)
    ]
    assert list(range(plan.base, samples - plan.dropped)) == positions


@given(samples=st.integers(1, 300), global_batch_size=st.integers(1, 64), end=end_modes)
def test_pads_fill_every_batch(samples: int, global_batch_size: int, end: EndMode) -> None:
    """With `pad` every global batch has its full size, and pads repeat its own samples."""
    plan = EpochPlan(samples, 0, global_batch_size, end)
    world_size = min(global_batch_size, 7)

    for index in range(plan.batch_count):
        parts = [plan.batch(index, rank=r, world_size=world_size) for r in range(world_size)]
        pads = [pad for part in parts for pad in part.pad_positions]
        first = parts[0]
        wanted = global_batch_size if end is EndMode.PAD else first.global_sample_count

        assert wanted == sum(part.sample_count for part in parts)
        assert all(first.position <= pad < first.next_position for pad in pads)


@given(samples=st.integers(1, 300), global_batch_size=st.integers(1, 64), ranks=st.integers(1, 7))
def test_what_all_ranks_gather_begins_with_the_samples(
    samples: int, global_batch_size: int, ranks: int
) -> None:
    """With `pad`, rows joined in the order of ranks are the samples, each once, then repeats."""
    plan = EpochPlan(samples, 0, global_batch_size, EndMode.PAD)
    world_size = min(global_batch_size, ranks)

    kept: list[int] = []
    for index in range(plan.batch_count):
        parts = [plan.batch(index, rank=r, world_size=world_size) for r in range(world_size)]
        joined = [
            row for each in parts for row in (*range(each.start, each.stop), *each.pad_positions)
        ]
        kept += joined[: parts[0].global_sample_count]

    assert list(range(samples)) == kept


@given(samples=st.integers(1, 300), extra=st.integers(0, 9), world_size=st.integers(1, 9))
def test_loss_scale_makes_the_mean_exact(samples: int, extra: int, world_size: int) -> None:
    """The mean over ranks of scaled means is the mean over the global batch."""
    plan = EpochPlan(samples, 0, world_size + extra, EndMode.UNEVEN)

    for index in range(plan.batch_count):
        parts = [plan.batch(index, rank=r, world_size=world_size) for r in range(world_size)]
        scaled = [
            part.loss_scale * sum(range(part.start, part.stop)) / part.sample_count
            for part in parts
            if part.sample_count
        ]
        first = parts[0]
        mean = sum(range(first.position, first.next_position)) / first.global_sample_count

        assert mean == pytest.approx(sum(scaled) / world_size)


def test_counts_are_known_in_advance() -> None:
    """`batch_count` and `dropped` follow from the end mode alone."""
    plans = [EpochPlan(100, 3, 10, end) for end in EndMode]

    assert [(9, 7), (10, 0), (10, 0)] == [(plan.batch_count, plan.dropped) for plan in plans]


@pytest.mark.parametrize(("end", "batches"), [("drop_last", 0), ("uneven", 1), ("pad", 1)])
def test_an_epoch_may_be_smaller_than_a_batch(end: str, batches: int) -> None:
    """An epoch of fewer samples than a global batch is dropped, or is one batch."""
    plan = EpochPlan(5, 0, 8, EndMode(end))

    assert batches == plan.batch_count
    assert 5 == plan.dropped + sum(batch.global_sample_count for batch in _batches(plan, 0, 1))


def test_the_last_batch_may_be_empty_on_a_rank() -> None:
    """With `uneven` a rank may get no sample of the last batch."""
    parts = [EpochPlan(9, 0, 8, EndMode.UNEVEN).batch(1, rank=r, world_size=2) for r in (0, 1)]

    assert [0, 1] == [part.sample_count for part in parts]
    assert [0.0, 2.0] == [part.loss_scale for part in parts]


@pytest.mark.parametrize(
    ("rank", "world_size", "field"),
    [
        (2, 2, "rank"),
        (-1, 2, "rank"),
        (0, 0, "world_size"),
        (0, 9, "global_batch_size"),
    ],
)
def test_coordinates_that_do_not_fit_are_refused(rank: int, world_size: int, field: str) -> None:
    """A refusal names the field."""
    plan = EpochPlan(100, 0, 8)

    with pytest.raises(BadArgumentError) as caught:
        plan.batch(0, rank=rank, world_size=world_size)

    assert field == caught.value.metadata["field"]


def test_a_batch_past_the_end_is_refused() -> None:
    """The batch after the last is refused, and so is a base after the last position."""
    with pytest.raises(PositionPastEndError, match="batch 12"):
        EpochPlan(100, 0, 8).batch(12, rank=0, world_size=1)
    with pytest.raises(PositionPastEndError, match="position 101"):
        EpochPlan(100, 101, 8)


@given(
    samples=st.integers(1, 200),
    base=st.integers(0, 200),
    extra=st.integers(0, 60),
    end=end_modes,
    world_size=st.integers(1, 12),
)
def test_every_row_of_every_rank_is_found_by_its_position(
    samples: int, base: int, extra: int, end: EndMode, world_size: int
) -> None:
    """A position's rows are those that hold it in the ranks' batches, pads included."""
    plan = EpochPlan(samples, min(base, samples), world_size + extra, end)
    expected: dict[int, list[Row]] = {position: [] for position in range(samples)}
    for index in range(plan.batch_count):
        for rank in range(world_size):
            batch = plan.batch(index, rank=rank, world_size=world_size)
            held = [*range(batch.start, batch.stop), *batch.pad_positions]
            for row, position in enumerate(held):
                expected[position].append(Row(index, rank, row))

    for position, rows in expected.items():
        found = find_rows(plan, position, world_size=world_size)
        assert sorted(rows) == list(found)


def test_finding_refuses_coordinates_that_do_not_fit() -> None:
    """A world size that the global batch has no samples for is named."""
    plan = EpochPlan(100, 0, 10)

    with pytest.raises(BadArgumentError, match="world size 30"):
        find_rows(plan, 5, world_size=30)


def test_a_sample_that_fills_up_a_large_batch_is_found_soon() -> None:
    """Each of its rows is found without listing those of its rank, or this would take hours."""
    found = find_rows(EpochPlan(1, 0, 50_000, EndMode.PAD), 0, world_size=1)

    assert [Row(0, 0, row) for row in range(50_000)] == list(found)
