"""Digests of samples: equal for equal samples at equal places, whatever the ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.loadtest.swarm.records import Recorder, id_sum, id_sum_of_range, order_sum, total

_IDS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=50, unique=True)


@given(ids=_IDS, cut=st.integers(0, 50), epoch=st.integers(0, 9), start=st.integers(0, 1 << 40))
def test_digests_add_up_over_ranks(ids: list[int], cut: int, epoch: int, start: int) -> None:
    """The digest of a batch is the sum of its parts' digests, wherever it is cut."""
    whole = np.array(ids, dtype=np.int64)
    parts = [whole[:cut], whole[cut:]]

    sums = [id_sum(part) for part in parts]
    places = [
        order_sum(parts[0], epoch=epoch, start=start),
        order_sum(parts[1], epoch=epoch, start=start + parts[0].size),
    ]

    assert id_sum(whole) == total(sums)
    assert order_sum(whole, epoch=epoch, start=start) == total(places)


@given(ids=st.lists(st.integers(0, 1 << 40), min_size=2, max_size=50, unique=True))
def test_order_shows(ids: list[int]) -> None:
    """Two samples that change places leave the multiset alone and change the order's digest."""
    one = np.array(ids, dtype=np.int64)
    other = one.copy()
    other[[0, -1]] = one[[-1, 0]]

    assert id_sum(one) == id_sum(other)
    assert order_sum(one, epoch=0, start=7) != order_sum(other, epoch=0, start=7)


@given(ids=_IDS, which=st.integers(0, 49))
def test_a_sample_seen_twice_shows(ids: list[int], which: int) -> None:
    """A multiset with one sample more, or another in its place, has another digest."""
    one = np.array(ids, dtype=np.int64)
    repeated = np.append(one, one[which % one.size])
    other = one.copy()
    other[which % one.size] += 1 << 50

    assert 3 == len({id_sum(one), id_sum(repeated), id_sum(other)})


def test_places_depend_on_epoch_and_position() -> None:
    """The same samples elsewhere have another digest."""
    ids = np.arange(5, dtype=np.int64)

    found = {order_sum(ids, epoch=epoch, start=start) for epoch in (0, 1) for start in (0, 1)}

    assert 4 == len(found)


def test_a_whole_range_is_counted_in_parts() -> None:
    """The digest of all samples of a dataset is that of their listing."""
    assert id_sum(np.arange(3_000_001)[::-1].astype(np.int64)) == id_sum_of_range(3_000_001)


def test_a_recorder_grows() -> None:
    """Records come back in order, however many there are."""
    recorder = Recorder()
    for number in range(1000):
        recorder.append((0, 0, number, *([0] * 9)))

    assert list(range(1000)) == recorder.records()["rank"].tolist()
