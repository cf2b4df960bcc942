"""Stages that change how the numbers of a column are written; docs/protocol.md describes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.arguments import flag, number, one_of, shown, text, whole
from headrace.client.options.stage import COLUMN, LENGTH_LIMIT, Stage, set_whole
from headrace.errors import BadArgumentError
from headrace.v1 import columns_pb2
from headrace.v1 import shard_service_pb2 as pb

_TYPES = {
    "bool": pb.ELEMENT_TYPE_BOOL,
    "int8": pb.ELEMENT_TYPE_INT8,
    "int16": pb.ELEMENT_TYPE_INT16,
    "int32": pb.ELEMENT_TYPE_INT32,
    "int64": pb.ELEMENT_TYPE_INT64,
    "uint8": pb.ELEMENT_TYPE_UINT8,
    "uint16": pb.ELEMENT_TYPE_UINT16,
    "uint32": pb.ELEMENT_TYPE_UINT32,
    "uint64": pb.ELEMENT_TYPE_UINT64,
    "float16": pb.ELEMENT_TYPE_FLOAT16,
    "float32": pb.ELEMENT_TYPE_FLOAT32,
    "float64": pb.ELEMENT_TYPE_FLOAT64,
}


@dataclass(frozen=True, slots=True)
class Cast(Stage):
    """Cast the numbers of a column to another type, such as ``float16``.

    Attributes:
        column: The column.
        dtype: NumPy's name of the type, or ``bool``. A number that does not fit is an error;
            floating-point numbers are rounded.
    """

    column: str
    dtype: str

    def __post_init__(self) -> None:
        """Refuse values that are not a column, or not a type."""
        text("Cast.column", self.column, wanted=COLUMN)
        one_of("Cast.dtype", self.dtype, tuple(_TYPES))

    def to_message(self) -> columns_pb2.Cast:
        """Write the stage down for the wire."""
        return columns_pb2.Cast(column=self.column, element_type=_TYPES[self.dtype])


@dataclass(frozen=True, slots=True)
class Pad(Stage):
    """Make a ragged column a tensor, with a second column ``<column>.length``.

    Attributes:
        column: The column.
        length: Elements of a row, >= 1.
        fill: The value to pad with.
        truncate: Whether to cut longer rows; otherwise they are errors.
    """

    column: str
    length: int
    fill: float = 0
    truncate: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Pad.column", self.column, wanted=COLUMN)
        set_whole(self, "length")
        number("Pad.fill", self.fill)
        flag("Pad.truncate", self.truncate)

    def to_message(self) -> columns_pb2.Pad:
        """Write the stage down for the wire."""
        return columns_pb2.Pad(
            column=self.column, length=self.length, fill=self.fill, truncate=self.truncate
        )


@dataclass(frozen=True, slots=True)
class Stack(Stage):
    """Make a ragged column whose rows all have the same length a tensor.

    Attributes:
        column: The column.
        item_shape: The shape of a row.
    """

    column: str
    item_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Stack.column", self.column, wanted=COLUMN)
        shape: object = self.item_shape
        if isinstance(shape, str | bytes) or not isinstance(shape, Iterable):
            raise BadArgumentError(
                f"Stack.item_shape is {shown(shape)}; expected a row's shape, such as (3, 224)",
                field="stages",
            )
        sides = [
            whole(f"Stack.item_shape[{at}]", side, low=0, high=LENGTH_LIMIT)
            for at, side in enumerate(shape)
        ]
        object.__setattr__(self, "item_shape", tuple(sides))

    def to_message(self) -> columns_pb2.Stack:
        """Write the stage down for the wire."""
        return columns_pb2.Stack(column=self.column, item_shape=self.item_shape)
