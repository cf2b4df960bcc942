"""Checks of options and of positions that several modules share."""

from __future__ import annotations

from typing import Final

from headrace.errors import BadArgumentError, PositionPastEndError

_EPOCH_LIMIT: Final = 1 << 62


def check_range(field: str, value: int, *, low: int, high: int) -> None:
    """Refuse a value outside [low, high).

    Raises:
        BadArgumentError: The value is outside it; the message names field, value and range.
    """
    if not low <= value < high:
        raise BadArgumentError(f"{field} is {value}, must be in [{low}, {high})", field=field)


def check_lanes(lanes: int, unit: int) -> None:
    """Refuse an impossible number of lanes, or an impossible unit.

    Raises:
        BadArgumentError: One is out of range, or a unit has fewer samples than there are lanes.
    """
    check_range("lanes", lanes, low=1, high=(1 << 20) + 1)
    check_range("unit", unit, low=1, high=1 << 42)
    if unit < lanes:
        raise BadArgumentError(
            f"unit is {unit}, but {lanes} lanes need a unit of at least as many samples: use "
            "the global batch size",
            field="unit",
        )


def check_positions(epoch: int, start: int, stop: int, *, sample_count: int) -> None:
    """Refuse positions that an epoch does not have.

    Raises:
        BadArgumentError: The epoch or the range is not valid.
        PositionPastEndError: The range passes the end of the epoch.
    """
    if not 0 <= epoch < _EPOCH_LIMIT:
        raise BadArgumentError(f"epoch is {epoch}, must be in [0, 2**62)", field="epoch")
    if not 0 <= start <= stop:
        raise BadArgumentError(
            f"positions [{start}, {stop}) are not a range that starts at 0 or later",
            field="position",
        )
    if stop > sample_count:
        raise PositionPastEndError(
            f"positions up to {stop} were requested, but an epoch has {sample_count} samples",
            position=stop,
            sample_count=sample_count,
        )
