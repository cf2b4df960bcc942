"""Find CSV columns that stay text because of a few values, and suggest a remedy.

A column of numbers with ``NA`` values, or with numbers that would be printed differently from how
they were written, stays text. That is correct but rarely intended, so it is reported.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.converter.text.types import GUESSES, holding

if TYPE_CHECKING:
    Array = pa.Array[Any]  # generic only in pyarrow's stubs

_MOST_WORDS = 3  # arbitrary: as many as a person would list
_FEW = 64  # arbitrary: names whose pattern is matched once each, among the first values
_MOST_SHARE = 0.1  # arbitrary: of values that are words other than the usual ones for nulls
_NOTHING = {"", "-", "--", ".", "?", "#n/a", "n/a", "na", "nan", "nil", "none", "null", "missing"}
_TYPED = r"^(-?\d|-?\.\d|(true|false|True|False|nan|-?inf)$)"
_DECIMAL = "decimal"
"""The key of numbers with fractions, whichever way they are written."""
_DECIMALS = r"^-?(0|[1-9]\d*)?(\.\d+)?([eE][+-]?\d+)?$"


@dataclass(frozen=True, slots=True)
class StaysText:
    """A column that stays text, but would have a type except for a few values.

    Attributes:
        column: Its name in the files.
        value: The first of those values.
        place: Its file and line.
        type: The type that the column would have.
        remedy: What to do, with options of `headrace convert`.
    """

    column: str
    value: str
    place: str
    type: pa.DataType
    remedy: str

    def __str__(self) -> str:
        return f"{self.column} stays text: {self.value!r} in {self.place}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Exceptions:
    """The values that keep a column from having a type.

    Attributes:
        keys: The keys of guesses that hold for all other values.
        rows: The first row of each word.
        words: How many values are words.
        values: How many there are in all.
        inexact: A number that would print differently, and its row.
    """

    keys: Sequence[str]
    rows: Mapping[str, int] = field(default_factory=dict)
    words: int = 0
    values: int = 0
    inexact: tuple[str, int] | None = None


_TOO_MANY = Exceptions(())


@dataclass(slots=True)
class AlmostTyped:
    """The type that a column would have without a few of the values seen so far.

    Attributes:
        keys: The keys of guesses that hold for the other values; empty if no type would hold.
        found: Where each word was seen first, and whether it is quoted there.
        words: How many values are words.
        values: How many there are in all.
        inexact: The first number that would print differently, and its place.
    """

    keys: Sequence[str] = (*GUESSES, _DECIMAL)
    found: dict[str, tuple[str, bool]] = field(default_factory=dict)
    words: int = 0
    values: int = 0
    inexact: tuple[str, str] | None = None

    def exceptions(self, text: Array, held: Sequence[str]) -> Exceptions:
        """Return the values of a chunk that keep it from having a type; changes nothing.

        Args:
            text: The text of the column.
            held: The guesses that hold for all its values.
        """
        if not self.keys:
            return _TOO_MANY
        if not held and text.null_count < len(text):
            return _exceptions(text, self.keys)
        keys = held or self.keys
        numbers = {_DECIMAL, "int", "float", "float repr"} & set(keys)
        return Exceptions((*keys, _DECIMAL) if numbers else keys, values=len(text))

    def seen(self, more: Exceptions, place: Callable[[str, int], tuple[str, bool]]) -> None:
        """Add what was found in the next chunk.

        Args:
            more: What `exceptions` returned.
            place: Returns the file and line of a value in a row, and whether it is quoted there.
        """
        kept = set(more.keys)
        self.keys = [key for key in self.keys if key in kept]
        self.words += more.words
        self.values += more.values
        new = {value: row for value, row in more.rows.items() if value not in self.found}
        if len(self.found) + len(new) > _MOST_WORDS:
            self.keys = []
        if self.keys:
            self.found |= {value: place(value, row) for value, row in new.items()}
            if more.inexact and not self.inexact:
                self.inexact = (more.inexact[0], place(*more.inexact)[0])

    def told(self, column: str) -> StaysText | None:
        """Return what to report about a column that stays text, or None."""
        if not self.keys or self.words == self.values:
            return None
        usual = all(value.lower() in _NOTHING for value in self.found)
        if self.words > _MOST_SHARE * self.values and not usual:
            return None
        is_decimal = self.keys[0] == _DECIMAL
        shown = [(value, place) for value, (place, _) in self.found.items()]
        shown += [self.inexact] if self.inexact and is_decimal else []
        if not shown or (is_decimal and not self.inexact):
            return None
        kind = pa.float64() if is_decimal else GUESSES[self.keys[0]].type
        return StaysText(column, *shown[0], kind, self._remedy(column, is_decimal=is_decimal))

    def _remedy(self, column: str, *, is_decimal: bool) -> str:
        if any(quoted for _, quoted in self.found.values()):
            return "it is in quotes, so it is not null; write nulls unquoted"
        nulls = " ".join(f"--null-value {shlex.quote(value)}" for value in self.found)
        numbers = f"--type {shlex.quote(column)}=float64 to have numbers"
        if not is_decimal:
            return f"pass {nulls} for null in all columns"
        if not nulls:
            return f"the number prints in another way, pass {numbers}"
        return f"pass {nulls} for null in all columns, and {numbers}"


def _exceptions(text: Array, keys: Sequence[str]) -> Exceptions:
    typed = _are_typed(text)
    words = text.filter(pc.invert(typed))
    found = pc.unique(words)
    if len(found) > _MOST_WORDS:
        return _TOO_MANY
    rest = text.filter(typed).drop_null()
    held, has_values = holding(rest, [key for key in keys if key != _DECIMAL])
    if not has_values:
        held = keys
    elif _DECIMAL in keys and pc.all(pc.match_substring_regex(rest, _DECIMALS)).as_py():
        held = (*held, _DECIMAL)
    if not held:
        return _TOO_MANY
    return Exceptions(
        held,
        {word: pc.index(text, word).as_py() for word in map(str, found.to_pylist())},
        words=len(words),
        values=len(text) - text.null_count,
        inexact=_inexact(text, rest) if held[0] == _DECIMAL else None,
    )


def _are_typed(text: Array) -> Any:
    """Return which values look like numbers, dates or truth values; nulls count as such."""
    distinct = pc.unique(text.slice(0, _FEW * 4))
    if len(distinct) > _FEW:
        return pc.match_substring_regex(text, _TYPED).fill_null(True)
    # Most likely a few names, each of which is looked at once.
    indexed: Any = text.dictionary_encode()
    typed: Any = pc.match_substring_regex(indexed.dictionary, _TYPED)
    return typed.take(indexed.indices).fill_null(True)


def _inexact(text: Array, numbers: Array) -> tuple[str, int] | None:
    """Return the first number with a fraction that would print differently, and its row."""
    for value in map(str, pc.unique(numbers).to_pylist()):
        shown = repr(float(value))
        if set(value) & set(".eE") and value not in (shown, shown.removesuffix(".0")):
            return value, pc.index(text, value).as_py()
    return None
