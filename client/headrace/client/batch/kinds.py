"""The columns of a batch by kind, for type checkers and for people: texts apart from tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

import torch

from headrace.client.batch.adapters import Value
from headrace.client.batch.columns import BytesColumn, RaggedColumn, StringColumn
from headrace.v1 import shard_service_pb2 as pb

_Column = TypeVar("_Column", bound=StringColumn | BytesColumn | RaggedColumn)

_STORED = {StringColumn: "str", BytesColumn: "bytes", RaggedColumn: "arrays of differing length"}


class ColumnsOfKind(Mapping[str, _Column], Generic[_Column]):
    """The columns of one kind, by name; a view of a batch's values."""

    def __init__(self, values: Mapping[str, Value], kind: type[_Column]) -> None:
        """Choose the columns.

        Args:
            values: All columns of the batch.
            kind: The class of the columns to show.
        """
        self._values, self._kind = values, kind

    def __getitem__(self, column: str) -> _Column:
        """Return a column.

        Raises:
            KeyError: There is no such column, or it is of another kind.
        """
        found = self._values.get(column)
        if isinstance(found, self._kind):
            return found
        wanted = _STORED[self._kind]
        known = ", ".join(self) or "none"
        what = "is not there" if found is None else f"has {described(found)}"
        raise KeyError(f"column {column!r} {what}; columns of {wanted}: {known}")

    def __iter__(self) -> Iterator[str]:
        return (name for name, value in self._values.items() if isinstance(value, self._kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {column!r}' for name, column in self.items())}}}"


def stored(column: pb.Column) -> str:
    """Return name, shape and type of a column's samples, such as ``x: (8,) float32``."""
    dtype = pb.ElementType.Name(column.element_type).removeprefix("ELEMENT_TYPE_").lower()
    shape = f"{tuple(column.item_shape)} " if column.item_shape else ""
    what = {
        pb.COLUMN_KIND_STRING: "str",
        pb.COLUMN_KIND_BYTES: "bytes",
        pb.COLUMN_KIND_RAGGED: f"ragged {dtype}",
    }.get(column.kind, f"{shape}{dtype}")
    valid = f", {column.name}.valid: bool" if column.nullable else ""
    return f"{column.name}: {what}{valid}"


def described(value: Value) -> str:
    """Return shape and type of a column's values, such as ``(256, 8) float32`` or ``str``."""
    if isinstance(value, torch.Tensor):
        there = "" if value.device.type == "cpu" else f" {value.device}"
        return f"{tuple(value.shape)} {_dtype(value)}{there}"
    if isinstance(value, RaggedColumn):
        return f"ragged {_dtype(value.values)}"
    # A function of the user's may have put anything there.
    return _STORED.get(type(value), type(value).__name__)


def _dtype(values: torch.Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
