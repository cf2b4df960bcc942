"""Each attack for a moment; `make attack` runs them for longer, and judges rates.

A moment on a busy machine says nothing of rates: the honest caller takes a turn or two in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from attacks.harness import Attack, Scene, all_attacks, judge, scene

# `make attack` sets it.
_IS_LONG = "HEADRACE_ATTACK_SECONDS" in os.environ
_SECONDS = float(os.environ.get("HEADRACE_ATTACK_SECONDS", "0.7"))

_ATTACKS = all_attacks()
# It costs others a second or two before it is over, so a moment of it says nothing;
# tests/server/front/test_gate.py has what ends it.
_LONG_ONLY = {"a08_reconnecting_resets"}
_NOT_RUN = pytest.mark.skipif(not _IS_LONG, reason="says something in its long form only")


@pytest.fixture(scope="module")
def scene_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Attack], Scene]]:
    """One server for all attacks with equal options: what one leaves behind, the next one meets."""
    scenes: dict[object, Scene] = {}
    with ExitStack() as stack:

        def made(attack: Attack) -> Scene:
            key = _server_of(attack)
            if key not in scenes:
                folder = tmp_path_factory.mktemp("scene")
                others = [one for one in _ATTACKS.values() if _server_of(one) == key]
                scenes[key] = stack.enter_context(scene(attack, folder, others))
            return scenes[key]

        yield made


def _server_of(attack: Attack) -> object:
    """Return what attacks on one server have in common."""
    return attack.options, attack.nofile, attack.attacker_streams


@pytest.mark.alone
@pytest.mark.timeout(1200 if _IS_LONG else 300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[_NOT_RUN] if name in _LONG_ONLY else []) for name in _ATTACKS],
)
def test_an_honest_caller_goes_on_during(
    name: str, scene_of: Callable[[Attack], Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    """An honest caller sees no error, and the server logs no traceback.

    In the long form the caller keeps its share of its rate too, which is half for most attacks.
    """
    attack = _ATTACKS[name] if _IS_LONG else replace(_ATTACKS[name], least_share=0.0)

    seconds = max(_SECONDS, attack.long_seconds) if _IS_LONG else _SECONDS
    report = judge(attack, scene_of(_ATTACKS[name]), seconds=seconds)

    with capsys.disabled():
        sys.stdout.write(f"\n{report}\n")
    assert [] == report.wrong
