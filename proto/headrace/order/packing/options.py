"""The options of packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.errors import BadArgumentError
from headrace.order.basics.checks import check_range

MAX_ROW_LENGTH: Final = 1 << 22
"""Elements of a row, at most: an eighth of them is the memory that finding room takes."""

_MARKS: Final = 3


@dataclass(frozen=True, slots=True)
class Packing:
    """How documents become rows; two equal ones make the same rows of the same lengths.

    Attributes:
        length: Elements of a row, in [1, `MAX_ROW_LENGTH`].
        cut: A document that no row has room for is cut if a row has room for this many elements or
            more, in [1, `length`]; 0 cuts only what is longer than a row.
        marks: Elements that are put before and after each document, 0 to 2.

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
