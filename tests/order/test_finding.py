"""Claims about finding which ranks get a position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgumentError
from headrace.order import EndMode, EpochPlan, Row, find_rows
from order.order_strategies import end_modes, ranks


@given(
    samples=st.integers(1, 200),
    base=st.integers(0, 200),
    extra=st.integers(0, 60),
    end=end_modes,
    coordinates=ranks(),
)
def test_every_row_of_every_rank_is_found_by_its_position(
    samples: int, base: int, extra: int, end: EndMode, coordinates: tuple[int, int]
) -> None:
    """A position's rows are those that hold it in the ranks' batches, pads included."""
    world_size, replication = coordinates
    plan = EpochPlan(samples, min(base, samples), world_size + extra, end)
    expected: dict[int, list[Row]] = {position: [] for position in range(samples)}
    for index in range(plan.batch_count):
        for rank in range(world_size):
            batch = plan.batch(index, rank=rank, world_size=world_size, replication=replication)
            held = [*range(batch.start, batch.stop), *batch.pad_positions]
            for row, position in enumerate(held):
                expected[position].append(Row(index, rank, row))

    for position, rows in expected.items():
        found = find_rows(plan, position, world_size=world_size, replication=replication)
        assert sorted(rows) == list(found)


def test_coordinates_that_do_not_fit_are_refused() -> None:
    """A replication that does not divide the world size is named."""
    plan = EpochPlan(100, 0, 10)

    with pytest.raises(BadArgumentError, match="replication is 2"):
        find_rows(plan, 5, world_size=3, replication=2)
