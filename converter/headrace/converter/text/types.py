"""Types for columns of text: a type holds only if every value prints back exactly as written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    Array = pa.Array[Any]  # generic only in pyarrow's stubs

_EXACT = 10**15  # floats below it print whole numbers with all their digits


@dataclass(frozen=True, slots=True)
class Guess:
    """A type that a column may have, and one way to print its values.

    Attributes:
        key: The key of the type and the way to print.
        type: The type of the column.
        looks: A pattern that all values match, which avoids most attempts.
        holds: Returns whether every value prints back; called without nulls.
        convert: Converts the column.
    """

    key: str
    type: pa.DataType
    looks: re.Pattern[str]
    holds: Callable[[Values], bool]
    convert: Callable[[Array], Array]


def _bools(yes: str, no: str) -> Guess:
    return Guess(
        f"bool {yes}",
        pa.bool_(),
        re.compile(f"{yes}|{no}"),
        lambda values: bool(pc.all(pc.is_in(values.text, value_set=pa.array([yes, no]))).as_py()),
        lambda text: cast("Array", pc.equal(text, pa.scalar(yes))),
    )


class Values:
    """Values of a column, without nulls, and what they are as other types: converted once each."""

    def __init__(self, text: Array) -> None:
        self.text = text
        self._printed: dict[pa.DataType, tuple[Array, Array] | None] = {}

    def printed(self, kind: pa.DataType) -> tuple[Array, Array] | None:
        """Return the values as a type, and as text again; None if one cannot be converted."""
        if kind not in self._printed:
            try:
                made = cast("Array", self.text.cast(kind))
            except pa.ArrowInvalid:
                self._printed[kind] = None
            else:
                self._printed[kind] = made, made.cast(pa.string())
        return self._printed[kind]


def _prints_back(kind: pa.DataType) -> Callable[[Values], bool]:
    def holds(values: Values) -> bool:
        printed = values.printed(kind)
        return printed is not None and bool(printed[1].equals(values.text))

    return holds


def _repr_holds(values: Values) -> bool:
    """Return whether Python's ``repr`` of each number is its text, as for ``1.0`` and ``1e-05``."""
    printed = values.printed(pa.float64())
    if printed is None:
        return False
    text, (made, short) = values.text, printed
    size = pc.abs(made)
    # Arrow and Python print alike what is not whole and has no exponent in Python.
    same = pc.and_(
        pc.match_substring(text, "."),
        pc.and_(pc.greater_equal(size, pa.scalar(1e-4)), pc.less(size, pa.scalar(1e15))),
    )
    rest = pc.invert(pc.and_(pc.equal(short, text), same))
    return _reprs(made.filter(rest), short.filter(rest), text.filter(rest))


def _reprs(numbers: Array, short: Array, text: Array) -> bool:
    """Return the same for the few numbers that Arrow prints differently; fast for whole ones."""
    whole = pc.and_(pc.equal(pc.utf8_slice_codeunits(text, 0, -2), short), pc.ends_with(text, ".0"))
    rest = pc.invert(whole)
    return all(
        repr(number.as_py()) == written.as_py()
        for number, written in zip(numbers.filter(rest), text.filter(rest), strict=True)
    )


def _times() -> list[Guess]:
    return [
        _time(unit, digits, mark, zone)
        for unit, digits in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))
        for mark in (" ", "T")
        for zone in ("", "Z")
    ]


def _time(unit: str, digits: int, mark: str, zone: str) -> Guess:
    kind = pa.timestamp(cast("Any", unit), "UTC" if zone else None)
    fraction = rf"\.\d{{{digits}}}" if digits else ""

    def holds(values: Values) -> bool:
        printed = values.printed(kind)
        if printed is None:
            return False
        text = printed[1]
        if mark != " ":
            text = pc.replace_substring(text, " ", mark, max_replacements=1)
        return bool(text.equals(values.text))

    return Guess(
        f"time {unit}{mark}{zone}",
        kind,
        re.compile(rf"-?\d{{4}}-\d\d-\d\d{mark}\d\d:\d\d:\d\d{fraction}{zone}"),
        holds,
        lambda text: cast("Array", text.cast(kind)),
    )


def _number(key: str, kind: pa.DataType, looks: str, holds: Callable[[Values], bool]) -> Guess:
    return Guess(key, kind, re.compile(looks), holds, lambda text: cast("Array", text.cast(kind)))


_INTEGER = r"-?(0|[1-9]\d{0,18})"
_FLOAT = r"-?(nan|inf|\d+(\.\d+)?(e[+-]?\d+)?)"

GUESSES: Mapping[str, Guess] = {
    guess.key: guess
    for guess in (
        _bools("true", "false"),
        _bools("True", "False"),
        _number("int", pa.int64(), _INTEGER, _prints_back(pa.int64())),
        _number("float", pa.float64(), _FLOAT, _prints_back(pa.float64())),
        _number("float repr", pa.float64(), _FLOAT, _repr_holds),
        _number("date", pa.date32(), r"\d{4}-\d\d-\d\d", _prints_back(pa.date32())),
        *_times(),
    )
}
"""Guesses by key, the preferred ones first."""

PARSED: Mapping[str, pa.DataType] = {
    key: GUESSES[key].type for key in ("int", "float", "float repr", "date")
}
"""Types that Arrow's CSV reader makes as it casts text, once all values are known to hold."""

TEXT = "text"
"""The key of columns that stay text."""


@dataclass(slots=True)
class ColumnGuess:
    """The types that a column may still have, after the values seen so far.

    Attributes:
        keys: The keys of guesses that hold, in the order of preference.
        has_values: Whether a value was not null.
    """

    keys: Sequence[str] = tuple(GUESSES)
    has_values: bool = False

    def seen(self, keys: Sequence[str], *, has_values: bool) -> None:
        """Add which guesses hold for further values of the column."""
        kept = set(keys)
        self.keys = [key for key in self.keys if key in kept]
        self.has_values = self.has_values or has_values

    @property
    def settled(self) -> str:
        """The key that the column gets; text if all values are null."""
        return self.keys[0] if self.keys and self.has_values else TEXT


def holding(text: Array, keys: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Return which guesses hold for all values, and whether there is any value.

    Args:
        text: The text of the column.
        keys: The keys of the guesses to try.
    """
    if not keys:
        return keys, True
    values = Values(text.drop_null())
    if not len(values.text):
        return keys, False
    first, last = values.text[0].as_py(), values.text[-1].as_py()
    likely = [
        key
        for key in keys
        if GUESSES[key].looks.fullmatch(first) and GUESSES[key].looks.fullmatch(last)
    ]
    if "int" in likely and GUESSES["int"].holds(values):
        return ["int", *_floats_of_integers(values, likely)], True
    return [key for key in likely if key != "int" and GUESSES[key].holds(values)], True


def _floats_of_integers(values: Values, keys: Sequence[str]) -> Sequence[str]:
    """Return the keys of floats that also hold for these whole numbers.

    The column may turn out to hold fractions.
    """
    if "float" not in keys:
        return ()
    printed = values.printed(pa.int64())
    assert printed is not None, "they are whole numbers"
    numbers = printed[0]
    least, most = pc.min(numbers).as_py(), pc.max(numbers).as_py()
    small = least > -_EXACT and most < _EXACT
    return ["float"] if small or GUESSES["float"].holds(values) else ()


def converted(text: Array, key: str) -> Array:
    """Return a column of text as the type of a key."""
    return text if key == TEXT else GUESSES[key].convert(text)


def type_of(key: str) -> pa.DataType:
    """Return the type of a key."""
    return pa.string() if key == TEXT else GUESSES[key].type
