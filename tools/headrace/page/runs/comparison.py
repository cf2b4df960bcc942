"""Compare two runs, and find where they first differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from headrace.order import Order, OrderSpec, Token

_LIMIT_S: Final = 2.0
_MAX_STEPS: Final = 100_000
_CHUNK: Final = 1 << 16
"""Samples to compare at a time, since a step may have any number of samples."""
_OPTIONS: Final = tuple(field.name for field in fields(OrderSpec))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two runs.

    Attributes:
        reasons: The options that differ, in words; none if the orders are the same.
        first_step: The first step, counted from the start of both runs, whose batches differ;
            None if none was found.
        steps_seen: The number of steps compared.
        is_proven: Whether `first_step` holds for all steps, including those not compared.
    """

    reasons: Sequence[str]
    first_step: int | None
    steps_seen: int
    is_proven: bool


def differences(one: Token, other: Token) -> list[str]:
    """Return the differences between the orders of two runs, in words."""
    stages = dict.fromkeys(name for name, _ in (*one.stages, *other.stages))
    found = [
        f"{name}: {was or 'none'} and {now or 'none'}"
        for name, was, now in (
            ("dataset version", one.fingerprint, other.fingerprint),
            *((name, one.stage(name), other.stage(name)) for name in stages),
            ("global batch size", str(one.global_batch_size), str(other.global_batch_size)),
        )
        if was != now
    ]
    specs = [(name, getattr(one.spec, name), getattr(other.spec, name)) for name in _OPTIONS]
    return [*found, *(f"{name}: {was} and {now}" for name, was, now in specs if was != now)]


def compare(
    one: tuple[Token, Order | None], other: tuple[Token, Order | None], *, is_one_dataset: bool
) -> Comparison:
    """Compare two runs from their starts, for at most two seconds.

    Args:
        one: The token of a run, and its order if known.
        other: The token and the order of another run.
        is_one_dataset: Whether equal ids are equal samples.
    """
    (first, run), (second, other_run) = one, other
    reasons = differences(first, second)
    if not reasons or run is None or other_run is None:
        return Comparison(reasons, None, 0, is_proven=not reasons)
    sizes = first.global_batch_size, second.global_batch_size
    if not is_one_dataset or sizes[0] != sizes[1]:
        # Batches of different datasets or sizes always differ.
        return Comparison(reasons, 0, 1, is_proven=True)
    size, deadline = sizes[0], time.monotonic() + _LIMIT_S
    batches = [made.sample_count // max(size, 1) for made in (run, other_run)]
    if not all(batches):
        return Comparison(reasons, None, 0, is_proven=False)
    step = 0
    while step < _MAX_STEPS and time.monotonic() < deadline:
        places = [divmod(step, count) for count in batches]
        for start in range(0, size, _CHUNK):
            stop = min(start + _CHUNK, size)
            one_ids, other_ids = (
                made.sample_ids(epoch, index * size + start, index * size + stop)
                for made, (epoch, index) in zip((run, other_run), places, strict=True)
            )
            if not np.array_equal(one_ids, other_ids):
                return Comparison(reasons, step, step + 1, is_proven=True)
            if time.monotonic() >= deadline:
                break
        else:
            step += 1
    return Comparison(reasons, None, step, is_proven=False)
