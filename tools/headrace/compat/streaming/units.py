"""Numbers as MosaicML Streaming lets users write them: ``"64mb"``, ``"10k"``."""

from __future__ import annotations

_BYTES = {f"{letter}b": 1 << (10 * power) for power, letter in enumerate("kmgtpezy", start=1)}
_BYTES["b"] = 1
_COUNTS = {letter: 1000**power for power, letter in enumerate("kmbt", start=1)}


def bytes_of(value: int | str) -> int:
    """Return a number of bytes such as ``"64mb"``, of 1024² each.

    Raises:
        ValueError: It is no such number.
    """
    return _number(value, _BYTES)


def count_of(value: int | str) -> int:
    """Return a number of samples such as ``"10k"``.

    Raises:
        ValueError: It is no such number.
    """
    return _number(value, _COUNTS)


def _number(value: int | str, units: dict[str, int]) -> int:
    if not isinstance(value, str):
        return int(value)
    text = value.strip().lower()
    unit = next((unit for unit in sorted(units, key=len, reverse=True) if text.endswith(unit)), "")
    try:
        return int(float(text[: len(text) - len(unit)]) * units.get(unit, 1))
    except ValueError as error:
        wanted = ", ".join(units)
        raise ValueError(f"{value!r} is no number with one of the units {wanted}") from error
