"""Turn JSON records into columns, once the common kind of all records is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.converter.text.cast import unfit_rows
from headrace.converter.text.json_kinds import Kind, UnlikeError, arrow_type, kind_of, merged
from headrace.converter.text.json_records import JsonFile, JsonRows
from headrace.converter.text.refused import Refusal

if TYPE_CHECKING:
    Array = pa.Array[Any]  # generic only in pyarrow's stubs


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging records.

    Attributes:
        kind: The common kind of these records and of all before them.
        left_out: Indices of the records that do not fit.
        refusals: The refusals of those records, with reasons.
    """

    kind: Kind
    left_out: frozenset[int]
    refusals: Sequence[Refusal]


def judged(
    rows: JsonRows, kind: Kind, *, source: JsonFile, types: Mapping[str, pa.DataType]
) -> Verdict:
    """Compare records with all before them, and with the declared types.

    Args:
        rows: The records.
        kind: The common kind of all records before them.
        source: The file of the records.
        types: The declared types by column.
    """
    try:
        found = merged(kind, kind_of(rows.values, path=""), path="")
        why: dict[int, str] = {}
    except UnlikeError:
        found, why = _one_by_one(rows, kind)
    for name, wanted in types.items():
        if name in found.fields:
            _declared(rows, name, found.fields[name], wanted, why)
    refusals = [
        Refusal(source.number, rows.lines[at], source.file.name, text)
        for at, text in sorted(why.items())
    ]
    return Verdict(found, frozenset(why), refusals)


def _one_by_one(rows: JsonRows, kind: Kind) -> tuple[Kind, dict[int, str]]:
    why: dict[int, str] = {}
    for at, value in enumerate(rows.values):
        try:
            kind = merged(kind, kind_of([value], path=""), path="")
        except UnlikeError as error:
            why[at] = str(error)
    return kind, why


def _declared(
    rows: JsonRows, name: str, kind: Kind, wanted: pa.DataType, why: dict[int, str]
) -> None:
    places = [at for at in range(len(rows.values)) if at not in why]
    values = [rows.values[at].get(name) for at in places]
    column: Array = pa.array(values, arrow_type(kind))
    try:
        for row in unfit_rows(column, _with_innermost(column.type, wanted)):
            why[places[row]] = (
                f"{name} is {values[row]!r:.60}, which is not a value of type {wanted}"
            )
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return  # the types cannot be cast at all, which is reported once for the column


def _with_innermost(kind: pa.DataType, innermost: pa.DataType) -> pa.DataType:
    if pa.types.is_nested(innermost) or not isinstance(kind, pa.ListType):
        return innermost
    return pa.list_(_with_innermost(kind.value_type, innermost))


def batch_of(values: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return records as a batch; names that a record lacks become nulls."""
    columns = [pa.array([value.get(part.name) for value in values], part.type) for part in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
