"""The checks."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf, isfinite
from numbers import Real
from typing import SupportsIndex, TypeVar

from headrace.errors import BadArgumentError

_T = TypeVar("_T")

_MOST_SHOWN = 100
_LONG_BITS = 20


def whole(field: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return a whole number in [low, high) as an `int`; NumPy's are as good.

    Raises:
        BadArgumentError: It is none, or out of range.
    """
    # Nearly always. Asking for the protocol takes 10 us, and a stream has fifteen such options.
    if type(value) is int and low <= value and (high is None or value < high):
        return value
    wanted = f"an int >= {low}" if high is None else f"an int in [{low}, {_short(high)})"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise _bad(field, value, wanted, _as_whole(value))
    try:
        found = operator.index(value)
    except TypeError:
        # Such as an array of several.
        raise _bad(field, value, wanted) from None
    if found < low or (high is not None and found >= high):
        raise BadArgumentError(f"{field} is {found}; expected {wanted}", field=field)
    return found


def whole_or_none(field: str, value: object, *, low: int, high: int | None = None) -> int | None:
    """Return a whole number as `whole` does, or None."""
    return None if value is None else whole(field, value, low=low, high=high)


def number(
    field: str,
    value: object,
    *,
    above: float | None = None,
    least: float = -inf,
    most: float = inf,
) -> float:
    """Return a finite number > above, >= least and <= most, as a `float`.

    Raises:
        BadArgumentError: It is none, or out of range.
    """
    limits = [] if above is None else [f"> {above:g}"]
    limits += [] if least == -inf else [f">= {least:g}"]
    limits += [] if most == inf else [f"<= {most:g}"]
    wanted = " ".join(["a number", " and ".join(limits)]).rstrip()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _bad(field, value, wanted, _as_number(value))
    found = float(value)
    is_above = above is None or found > above
    if not (isfinite(found) and is_above and least <= found <= most):
        raise BadArgumentError(f"{field} is {found:g}; expected {wanted}", field=field)
    return found


def flag(field: str, value: object) -> bool:
    """Return True or False; NumPy's are as good, and nothing else is.

    Raises:
        BadArgumentError: It is neither.
    """
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _bad(field, value, "True or False")


def text(field: str, value: object, *, wanted: str = "a str") -> str:
    """Return a `str` that is not empty.

    Raises:
        BadArgumentError: It is something else.
    """
    if isinstance(value, str) and value:
        return value
    raise _bad(field, value, wanted)


def texts(field: str, value: object, *, wanted: str = "a list of str") -> tuple[str, ...]:
    """Return strings, none of them empty, that came in an order.

    Raises:
        BadArgumentError: It is one string, or something in it is none, or it has no order.
    """
    if isinstance(value, str):
        raise _bad(field, value, wanted, f"[{value[:_MOST_SHOWN]!r}]")
    if isinstance(value, AbstractSet | Mapping | bytes) or not isinstance(value, Iterable):
        raise _bad(field, value, wanted)
    found = tuple(value)
    for index, each in enumerate(found):
        if not isinstance(each, str) or not each:
            raise _bad(f"{field}[{index}]", each, "a str that is not empty", field=field)
    return found


def one_of(field: str, value: object, choices: Sequence[str | None]) -> None:
    """Refuse what is not among some names.

    Raises:
        BadArgumentError: It is not.
    """
    if value is None or isinstance(value, str):
        if value in choices:
            return
        names = [repr(choice) for choice in choices]
        raise BadArgumentError(
            f"{field} is {shown(value)}; expected one of {', '.join(names)}", field=field
        )
    raise _bad(field, value, "one of " + ", ".join(map(repr, choices)))


def instance(
    field: str, value: object, kind: type[_T] | tuple[type[_T], ...], *, wanted: str
) -> _T:
    """Return what is of a type.

    Raises:
        BadArgumentError: It is of another one.
    """
    if isinstance(value, kind):
        return value
    raise _bad(field, value, wanted)


def instance_or_none(
    field: str, value: object, kind: type[_T] | tuple[type[_T], ...], *, wanted: str
) -> _T | None:
    """Return what is of a type, or None."""
    return None if value is None else instance(field, value, kind, wanted=wanted)


def mapping_or_none(field: str, value: object, *, wanted: str) -> None:
    """Refuse what is neither None nor a mapping whose keys are strings.

    Raises:
        BadArgumentError: It is something else.
    """
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        # What it holds may be secret.
        kind = type(value).__name__
        raise BadArgumentError(f"{field} is of type {kind}; expected {wanted}", field=field)


def _bad(
    shown_as: str, value: object, wanted: str, remedy: str = "", *, field: str = ""
) -> BadArgumentError:
    found = f"{shown(value)}, of type {type(value).__name__}"
    advice = f": pass {remedy}" if remedy else ""
    return BadArgumentError(
        f"{shown_as} is {found}; expected {wanted}{advice}", field=field or shown_as
    )


def shown(value: object) -> str:
    """Return how a value looks in a message: short, whatever it is."""
    try:
        found = repr(value)
    except Exception:  # noqa: BLE001 - whatever a stranger's class does, it is none of ours
        return "an object that cannot be shown"
    return found if len(found) <= _MOST_SHOWN else f"{found[:_MOST_SHOWN]}…"


def _short(limit: int) -> str:
    """Write a power of two as one, where its digits would say nothing."""
    power = limit.bit_length() - 1
    return f"2^{power}" if power >= _LONG_BITS and limit == 1 << power else str(limit)


def _as_whole(value: object) -> str:
    """Return the number that was likely meant; empty if there is no telling."""
    try:
        meant = int(value) if isinstance(value, str) else float(value)  # type: ignore[arg-type] # it says so itself
    except (TypeError, ValueError, OverflowError):
        return ""
    if isinstance(value, bool) or not isfinite(meant) or meant != int(meant):
        return ""
    return str(int(meant))


def _as_number(value: object) -> str:
    if not isinstance(value, str):
        return ""
    try:
        return repr(float(value))
    except ValueError:
        return ""
