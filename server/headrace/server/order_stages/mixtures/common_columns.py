"""Find the columns that several datasets share, and why others cannot be sent for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.payload import SAMPLE_ID_COLUMN
from headrace.server.layout.wire_columns import WireColumn
from headrace.v1 import shard_service_pb2 as pb

SAMPLE_PAIRS = WireColumn(
    SAMPLE_ID_COLUMN, pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_INT64, np.dtype("<i8"), (2,)
)
"""A sample of a mixture: the index of its dataset, and its id in it."""


@dataclass(frozen=True, slots=True)
class DatasetColumns:
    """The columns of one dataset.

    Attributes:
        name: The dataset's name.
        columns: Its columns that can be sent.
        refused: Why each other column cannot be sent.
    """

    name: str
    columns: tuple[WireColumn, ...]
    refused: dict[str, str]


def agreed_columns(
    datasets: Sequence[DatasetColumns],
) -> tuple[tuple[WireColumn, ...], dict[str, str]]:
    """Return the columns that are the same in all datasets, and why each other one cannot be sent.

    A column may be null if it may be in any of them. The order is that of the first dataset.
    """
    first = datasets[0]
    agreed = {column.name: column for column in first.columns}
    refused = dict(first.refused)
    # Thousands of datasets usually have the same schema.
    for other in {each.columns: each for each in datasets[1:]}.values():
        theirs = {column.name: column for column in other.columns}
        for name in [name for name in theirs if name not in agreed and name not in refused]:
            refused[name] = _missing(name, has=other, lacks=first)
        for column in list(agreed.values()):
            agreed[column.name] = _joined(column, theirs.get(column.name), refused, first, other)
    for other in datasets[1:]:
        refused = {**other.refused, **refused}
    _refuse_whole(agreed.values(), refused)
    return tuple(column for column in agreed.values() if column.name not in refused), refused


def _joined(
    ours: WireColumn,
    theirs: WireColumn | None,
    refused: dict[str, str],
    first: DatasetColumns,
    other: DatasetColumns,
) -> WireColumn:
    if theirs is None:
        refused.setdefault(ours.name, _missing(ours.name, has=first, lacks=other))
        return ours
    nullable = ours.nullable or theirs.nullable
    joined = replace(ours, nullable=nullable)
    if replace(theirs, nullable=nullable, stored_column=ours.stored_column) != joined:
        refused.setdefault(
            ours.name,
            f"column {ours.name!r} differs between the datasets of the mixture: {first.name!r} "
            f"has {_text(ours)}, {other.name!r} has {_text(theirs)}",
        )
    return joined


def _missing(name: str, *, has: DatasetColumns, lacks: DatasetColumns) -> str:
    return (
        f"column {name!r} differs between the datasets of the mixture: {has.name!r} has it, "
        f"{lacks.name!r} does not"
    )


def _refuse_whole(columns: Iterable[WireColumn], refused: dict[str, str]) -> None:
    # A nested column requested by its own name means all its parts.
    for column in columns:
        if column.name in refused and column.stored_column:
            refused.setdefault(column.stored_column, refused[column.name])


def _text(column: WireColumn) -> str:
    kind = pb.ColumnKind.Name(column.kind).removeprefix("COLUMN_KIND_").lower()
    shape = f" with shape {column.item_shape}" if column.item_shape else ""
    meaning = f" ({column.logical_type})" if column.logical_type else ""
    return f"{kind} {column.dtype.name}{shape}{meaning}"
