"""Checks of options that several modules share."""

from __future__ import annotations

from headrace.errors import BadArgumentError


def check_range(field: str, value: int, *, low: int, high: int) -> None:
    """Refuse a value outside [low, high).

    Raises:
        BadArgumentError: With the field, the value and the range.
    """
    if not low <= value < high:
        raise BadArgumentError(f"{field} is {value}, must be in [{low}, {high})", field=field)


def check_lanes(lanes: int, unit: int) -> None:
    """Refuse numbers of lanes and samples of a unit that cannot be.

    Raises:
        BadArgumentError: If one is out of range, or a unit has fewer samples than lanes.
    """
    check_range("lanes", lanes, low=1, high=(1 << 20) + 1)
    check_range("unit", unit, low=1, high=1 << 42)
    if unit < lanes:
        raise BadArgumentError(
            f"unit is {unit}, but {lanes} lanes need a unit of as many samples at least: take the"
            " global batch size",
            field="unit",
        )
