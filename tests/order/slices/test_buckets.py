"""Claims about length buckets: the same samples, like lengths, and the same in another language.

How it could give a wrong sample: a window that loses or repeats a place, or that reaches into
another; a sample that leaves its lane; an arrangement that the last, incomplete unit changes.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.order import Buckets, Window

_SECOND = Path(__file__).parents[1] / "second" / "buckets.mjs"
_NODE = shutil.which("node")

_buckets = st.builds(
    lambda seed, shuffle, lanes, unit, samples, units: Buckets(
        seed, shuffle, lanes, max(lanes, unit), samples, units
    ),
    st.integers(0, 2**63 - 1),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 400),
    st.integers(2, 9),
)


def _windows(buckets: Buckets) -> list[Window]:
    found = (buckets.window(position) for position in range(buckets.sample_count))
    return [window for window, _ in itertools.groupby(found) if window is not None]


def _lengths(data: st.DataObject, window: Window) -> NDArray[np.int64]:
    seed = data.draw(st.integers(0, 2**32))
    return np.random.default_rng(seed).integers(0, 30, window.stop - window.start)


@given(_buckets)
def test_windows_are_the_whole_units_of_an_epoch(buckets: Buckets) -> None:
    """They follow one another, none is much smaller than another, and only a rest is in none."""
    windows = _windows(buckets)
    full = buckets.sample_count // buckets.unit * buckets.unit
    edges = [0, *(window.stop for window in windows)]

    assert [(w.number, w.start) for w in windows] == list(enumerate(edges[:-1]))
    assert edges[-1] == full
    sizes = {(window.stop - window.start) // buckets.unit for window in windows}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert max(sizes, default=0) <= buckets.units
    assert all(buckets.window(at) is None for at in range(full, buckets.sample_count))


@settings(max_examples=200)
@given(_buckets, st.integers(0, 2**62 - 1), st.data())
def test_each_lane_of_a_window_is_cut_by_length(
    buckets: Buckets, epoch: int, data: st.DataObject
) -> None:
    """Each place comes once, in its lane; of two units, all of one lane's are as long or longer."""
    for window in _windows(buckets):
        lengths = _lengths(data, window)
        found = buckets.arrangement(epoch, window, lengths)

        assert sorted(found) == list(range(window.stop - window.start))
        units = found.reshape(-1, buckets.unit)
        whole = np.arange(found.size).reshape(units.shape)
        for lane in range(buckets.lanes):
            slots = slice(
                lane * buckets.unit // buckets.lanes, (lane + 1) * buckets.unit // buckets.lanes
            )
            own = units[:, slots]
            assert sorted(own.ravel()) == sorted(whole[:, slots].ravel())
            # What is of like length stays in the order of the order, which is random.
            assert np.all(np.diff(own, axis=1) > 0)
            bounds = sorted((lengths[each].min(), lengths[each].max()) for each in own)
            assert all(one[1] <= other[0] for one, other in itertools.pairwise(bounds))
            if not buckets.shuffle:
                assert bounds == [(lengths[each].min(), lengths[each].max()) for each in own]


def test_the_order_of_buckets_is_shuffled_in_each_window_and_epoch() -> None:
    """Of 64 units of rising length no two windows or epochs have one order, nor two seeds."""
    orders = set()
    for seed, epoch, number in itertools.product((1, 2), (0, 1, 2), (0, 1)):
        buckets = Buckets(seed, True, 1, 2, 256, 64)
        window = buckets.window(128 * number)
        assert window is not None
        found = buckets.arrangement(epoch, window, np.arange(128))
        orders.add(tuple((found.reshape(-1, 2)[:, 0] // 2).tolist()))
    assert len(orders) == 12
    assert all(sorted(each) == list(range(64)) for each in orders)


def test_golden() -> None:
    """The vector of docs/order.md."""
    buckets = Buckets(7, True, 2, 4, 22, 3)
    lengths = np.array([5, 1, 9, 3, 3, 8, 2, 7, 4, 6, 1, 2])
    assert buckets.window(0) == Window(0, 0, 8)
    window = buckets.window(8)
    assert window == Window(1, 8, 20)
    assert buckets.window(20) is None

    assert _GOLDEN == buckets.arrangement(3, window, lengths).tolist()


_GOLDEN = [5, 9, 2, 7, 1, 4, 6, 10, 0, 8, 3, 11]


def _question(rng: np.random.Generator) -> dict[str, Any]:
    lanes = int(rng.choice([1, 1, 2, 3]))
    unit = lanes + int(rng.integers(0, 9))
    samples = int(rng.integers(unit, 30 * unit))
    return {
        "seed": str(rng.integers(0, 2**63)),
        "epoch": str(rng.integers(0, 2**62)),
        "shuffle": bool(rng.random() < 0.8),
        "lanes": lanes,
        "unit": unit,
        "units": int(rng.integers(2, 9)),
        "lengths": rng.integers(0, 20, samples).tolist(),
    }


def _answer(question: dict[str, Any]) -> list[int]:
    """Return which position of the order comes at each position of an epoch."""
    lengths = np.array(question["lengths"])
    buckets = Buckets(
        int(question["seed"]),
        question["shuffle"],
        question["lanes"],
        question["unit"],
        lengths.size,
        question["units"],
    )
    positions = np.arange(lengths.size)
    for window in _windows(buckets):
        own = slice(window.start, window.stop)
        found = buckets.arrangement(int(question["epoch"]), window, lengths[own])
        positions[own] = window.start + found
    return positions.tolist()


@pytest.mark.skipif(_NODE is None, reason="there is no Node.js here")
def test_buckets_are_those_of_the_second_implementation() -> None:
    """Whole epochs, with lanes, rests and equal lengths."""
    rng = np.random.default_rng(24)
    questions = [_question(rng) for _ in range(200)]
    asked = "".join(json.dumps(each) + "\n" for each in questions)

    said = subprocess.run(
        [str(_NODE), str(_SECOND)], input=asked, capture_output=True, text=True, check=True
    )

    answers = list(map(json.loads, said.stdout.splitlines()))
    assert [_answer(question) for question in questions] == answers
