"""Refuse columns with names that readers use for columns derived from others.

A column ``x`` that may be null comes with ``x.valid``; a nested one is split into columns whose
names start with its own and a dot; and ``headrace.`` is reserved for the server (docs/protocol.md).
Whether a column has nulls is only known when everything is written, and an append may add the
first, so every column counts as nullable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from headrace.errors import UnsupportedColumnError

if TYPE_CHECKING:
    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_RESERVED = "headrace."


def refuse_derived_names(fields: Sequence[Field]) -> None:
    """Refuse columns if one has a name derived from another.

    Args:
        fields: All fields of a dataset.

    Raises:
        UnsupportedColumnError: There is such a column; the message names both.
    """
    _refuse(fields, inside="", is_item=False)


def _refuse(fields: Sequence[Field], *, inside: str, is_item: bool) -> None:
    """Refuse columns, or fields of a struct, or of a struct that is an item of a list."""
    names = [field.name for field in fields]
    for field in fields:
        name = f"{inside}{field.name}"
        if name.startswith(_RESERVED):
            raise _error(name, f"names that start with {_RESERVED!r} are reserved for the server")
        if names.count(field.name) > 1:
            raise _error(name, "there is another column of that name")
        comes_apart = is_item or _nests(field.type)
        wanted = f"{field.name}." if comes_apart else f"{field.name}.valid"
        taken = [each for each in names if each.startswith(wanted)]
        if comes_apart and taken:
            raise _error(f"{inside}{taken[0]}", f"{name!r} is split into columns with such names")
        if wanted in taken:
            raise _error(
                f"{inside}{wanted}", f"it is needed to say which rows of {name!r} are valid"
            )
        is_list = is_item or not pat.is_struct(field.type)
        _refuse(_children(field.type), inside=f"{name}.", is_item=is_list)


def _nests(kind: pa.DataType) -> bool:
    return not (_is_number(kind) or _is_flat_list(kind)) and pat.is_nested(kind)


def _is_flat_list(kind: pa.DataType) -> bool:
    """Return whether a list or tensor is sent as one column."""
    while isinstance(kind, pa.FixedSizeListType):
        kind = kind.value_type
        if _is_number(kind):
            return True
    return isinstance(kind, (pa.ListType, pa.LargeListType)) and _is_number(kind.value_type)


def _is_number(kind: pa.DataType) -> bool:
    return pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind)


def _children(kind: pa.DataType) -> Sequence[Field]:
    """Return the fields of structs at any depth of lists; a map's are ``key`` and ``value``."""
    if isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return _children(kind.value_type)
    if isinstance(kind, pa.MapType):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    return list(kind) if isinstance(kind, pa.StructType) else []


def _error(name: str, reason: str) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"column {name!r} cannot be written under this name: {reason}; rename it (columns={{...}} "
        "of write_shards, or withColumnRenamed)",
        column=name,
    )
