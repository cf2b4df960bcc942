"""Which server is asked first."""

from collections import Counter

import pytest

from headrace.client.servers.replicas import by_preference
from headrace.client.servers.targets import lane_of

REPLICAS = [f"feed-{number}:50051" for number in range(8)]


def test_without_lanes_addresses_are_asked_as_they_stand() -> None:
    """One lane prefers nobody."""
    assert lane_of(3, world_size=8, lanes=1) is None


@pytest.mark.parametrize(
    ("world_size", "lanes", "expected"),
    [
        (8, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (8, 2, [0, 0, 0, 0, 1, 1, 1, 1]),
        (4, 8, [1, 3, 5, 7]),
        (3, 2, [0, 1, 1]),
        (1, 4, [2]),
    ],
)
def test_a_rank_has_the_lane_of_the_middle_of_its_share(
    world_size: int, lanes: int, expected: list[int]
) -> None:
    """Ranks take consecutive slices of a batch, and lanes consecutive slots of a unit."""
    found = [lane_of(rank, world_size=world_size, lanes=lanes) for rank in range(world_size)]

    assert expected == found


def test_all_ranks_of_a_lane_agree_whatever_the_order_of_the_addresses() -> None:
    """Preference depends on the set of addresses alone."""
    assert by_preference(REPLICAS, 3) == by_preference(REPLICAS[::-1], 3)


def test_lanes_spread_over_the_replicas() -> None:
    """A thousand lanes give each of eight replicas its eighth, by a third at most."""
    counts = Counter(by_preference(REPLICAS, lane)[0] for lane in range(1000))

    assert set(REPLICAS) == set(counts)
    assert 1000 / 8 * 0.66 < min(counts.values()) <= max(counts.values()) < 1000 / 8 * 1.34


def test_a_lost_replica_moves_its_own_lanes_alone() -> None:
    """Caches of the others stay warm."""
    lost = REPLICAS[5]
    for lane in range(100):
        before = by_preference(REPLICAS, lane)
        after = by_preference([name for name in REPLICAS if name != lost], lane)

        assert [name for name in before if name != lost] == after
