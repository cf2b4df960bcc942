"""Who keeps a training waiting is named, in real processes: 200 faults, and a table of the answers.

``PYTHONPATH=tests python -m pytest -s -m long tests/end_to_end/test_blame.py`` prints it.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from headrace.client.feeds.blame import HOPS
from support.blamed_job import FAULTS, Found, judged, rank_for, recover, running

_SHORT = ("store answers 503", "server stopped", "black hole", "slow transform", "slow trainer")
_COUNT = 200
_RIGHT = 0.95


def _table(found: list[Found]) -> str:
    """Return how often what was said of whom: the confusion matrix."""
    said = Counter((each.fault.hop, each.hop) for each in found)
    lines = [f"{'':8}" + "".join(f"{hop:>9}" for hop in HOPS)]
    lines += [f"{real:8}" + "".join(f"{said[real, hop]:9}" for hop in HOPS) for real in HOPS]
    right = sum(each.is_right for each in found)
    wrong = [
        f"{each.fault.name}: {each.hop} of rank {each.rank}, {each.waited}"
        for each in found
        if not each.is_right
    ]
    return "\n".join([*lines, f"{right} of {len(found)} right", *wrong])


@pytest.mark.long
@pytest.mark.alone
def test_the_culprit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault of each kind, within six seconds, with the rank where it is one rank's."""
    with running(tmp_path, monkeypatch) as world:
        chance, found = random.Random(7), []
        for fault in FAULTS:
            if fault.name in _SHORT:
                found.append(judged(world, fault, rank_for(world, fault, chance)))
                recover(world)
        said = str(world.ranks[0].dataset.stats())

    assert all(each.is_right for each in found), _table(found)
    assert "lately" in said
    assert "rank 0 " in said


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_the_culprit_of_200_faults_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 95 % of them right, of all kinds, by chance."""
    with running(tmp_path, monkeypatch) as world:
        chance, found = random.Random(3), []
        for number in range(_COUNT):
            fault = FAULTS[number] if number < len(FAULTS) else chance.choice(FAULTS)
            found.append(judged(world, fault, rank_for(world, fault, chance)))
            sys.stdout.write(f"{number} {found[-1]}\n")
            recover(world)

    sys.stdout.write(_table(found))
    assert sum(each.is_right for each in found) >= _RIGHT * _COUNT, _table(found)
