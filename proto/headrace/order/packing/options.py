"""The options of packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.errors import BadArgumentError
from headrace.order.basics.checks import check_range

MAX_ROW_LENGTH: Final = 1 << 22
"""Most elements of a row. Finding room takes an eighth of this number in bytes."""

_MARKS: Final = 3


@dataclass(frozen=True, slots=True)
class Packing:
    """How documents become rows; equal options make equal rows of equal lengths.

    Attributes:
        length: Elements of a row, in [1, `MAX_ROW_LENGTH`].
        cut: A document that fits into no row is cut if a row has room for at least this many
            elements, in [1, `length`]; 0 cuts only documents longer than a row.
        marks: Elements that are added before and after each document, 0 to 2 in all.

    Raises:
        BadArgumentError: A value is out of range.
    """

    length: int
    cut: int = 0
    marks: int = 0

    def __post_init__(self) -> None:
        check_range("length", self.length, low=1, high=MAX_ROW_LENGTH + 1)
        check_range("marks", self.marks, low=0, high=_MARKS)
        if self.cut and not 1 <= self.cut <= self.length:
            raise BadArgumentError(
                f"cut is {self.cut}, must be 0 or in [1, {self.length}], the length of a row",
                field="cut",
            )
