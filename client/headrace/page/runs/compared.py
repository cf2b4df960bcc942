"""Compare two runs: what they have in common, and where they first differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from headrace.order import OrderSpec, Token
from headrace.page.runs.run_order import RunOrder

_LOOK_S: Final = 2.0
_MOST_STEPS: Final = 100_000
_MOST_TOGETHER: Final = 1 << 16
"""Samples of one step to compare at a time, since a token may name a batch of any size."""
_OPTIONS: Final = tuple(field.name for field in fields(OrderSpec))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two runs.

    Attributes:
        reasons: Options that differ, in words; none for runs with the same order.
        first_step: The first step, from the start of both runs, whose global batches differ in
            samples or their order; None if none was found.
        steps_seen: The number of steps compared.
        is_proven: Whether `first_step` is right for all steps, compared or not.
    """

    reasons: Sequence[str]
    first_step: int | None
    steps_seen: int
    is_proven: bool


def differences(one: Token, other: Token) -> list[str]:
    """Return the differences between the orders of two runs in words."""
    found = [
        f"{name}: {was or 'none'} and {now or 'none'}"
        for name, was, now in (
            ("dataset version", one.fingerprint, other.fingerprint),
            ("mixture", one.mixture, other.mixture),
            ("skipped samples", one.skips, other.skips),
            ("filter", one.kept, other.kept),
            ("buckets", str(one.buckets), str(other.buckets)),
            ("transforms", one.transforms, other.transforms),
            ("global batch size", str(one.global_batch_size), str(other.global_batch_size)),
        )
        if was != now
    ]
    specs = [(name, getattr(one.spec, name), getattr(other.spec, name)) for name in _OPTIONS]
    return [*found, *(f"{name}: {was} and {now}" for name, was, now in specs if was != now)]


def compare(one: tuple[Token, RunOrder | None], other: tuple[Token, RunOrder | None]) -> Comparison:
    """Compare two runs from their starts, for at most two seconds.

    Samples are the same if they have the same id in datasets of the same name.

    Args:
        one: The token of a run, and its order if known.
        other: The same for another run.
    """
    (first, run), (second, other_run) = one, other
    reasons = differences(first, second)
    if not reasons:
        return Comparison((), None, 0, is_proven=True)
    if run is None or other_run is None:
        return Comparison(reasons, None, 0, is_proven=False)
    sizes = first.global_batch_size, second.global_batch_size
    if sizes[0] != sizes[1]:
        # Batches of different sizes differ from the first on.
        return Comparison(reasons, 0, 1, is_proven=True)
    size, deadline = sizes[0], time.monotonic() + _LOOK_S
    batches = [made.order.sample_count // max(size, 1) for made in (run, other_run)]
    if not all(batches):
        return Comparison(reasons, None, 0, is_proven=False)
    step = 0
    while step < _MOST_STEPS and time.monotonic() < deadline:
        places = [divmod(step, count) for count in batches]
        for start in range(0, size, _MOST_TOGETHER):
            stop = min(start + _MOST_TOGETHER, size)
            if not _are_equal(run, other_run, places, size=size, span=(start, stop)):
                return Comparison(reasons, step, step + 1, is_proven=True)
            if time.monotonic() >= deadline:
                break
        else:
            step += 1
    return Comparison(reasons, None, step, is_proven=False)


def _are_equal(
    run: RunOrder,
    other: RunOrder,
    places: Sequence[tuple[int, int]],
    *,
    size: int,
    span: tuple[int, int],
) -> bool:
    """Return whether two runs have the same samples in a part of a step, in the same order."""
    names = sorted({member.name for each in (run, other) for member in each.members})
    found = []
    for each, (epoch, index) in zip((run, other), places, strict=True):
        ids = each.order.sample_ids(epoch, index * size + span[0], index * size + span[1])
        owners, own = each.split(ids)
        numbers = np.array([names.index(member.name) for member in each.members])
        found.append((numbers[owners], own))
    (owners, own), (its_owners, its_own) = found
    return np.array_equal(own, its_own) and np.array_equal(owners, its_owners)
