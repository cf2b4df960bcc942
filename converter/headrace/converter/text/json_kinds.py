"""The common kind of JSON values, and the Arrow type that holds them all exactly."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

_INT64 = (-(2**63), 2**63)
_UINT64 = (0, 2**64)
_MOST_BITS = 256  # of a number printed in an error
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_INFINITE = (_CONSTANTS["Infinity"], _CONSTANTS["-Infinity"])
_MOST_DEPTH = 50  # Arrow's messages hold 64 levels, and we use some of them
_MOST_PATH = 80  # characters of a path in an error
_EXACT = 2**53  # floats hold all whole numbers up to it exactly

_Name = Literal["null", "bool", "int", "float", "string", "struct", "list"]
_NAMES: Mapping[type, _Name] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "string",
    dict: "struct",
    list: "list",
}
_SHOWN: Mapping[_Name, str] = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "a string",
    "struct": "an object",
    "list": "an array",
}


_PLAIN: Mapping[_Name, pa.DataType] = {
    "bool": pa.bool_(),
    "float": pa.float64(),
    "null": pa.string(),
    "string": pa.string(),
}


def constant(name: str) -> float:
    """Return the float of ``NaN``, ``Infinity`` or ``-Infinity``: always the same object.

    So it can be distinguished from the result of ``1e999``.
    """
    return _CONSTANTS[name]


class UnlikeError(ValueError):
    """No column can hold the values together; the message says why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The common kind of several values.

    Attributes:
        name: The name of the kind; every kind includes null.
        low: The lowest whole number.
        high: The highest whole number.
        fields: The fields of objects, in the order of their first appearance.
        item: The kind of the items of arrays.
        has_nulls: Whether a value is null.
    """

    name: _Name = "null"
    low: int = 0
    high: int = 0
    fields: Mapping[str, Kind] = field(default_factory=dict)
    item: Kind | None = None
    has_nulls: bool = False


def kind_of(values: Sequence[Any], *, path: str, depth: int = 0) -> Kind:
    """Return the common kind of values.

    Args:
        values: Values from Python's json module with `constant`.
        path: The path to the values, for errors.
        depth: Number of objects and arrays around them.

    Raises:
        UnlikeError: They have no common kind, or no type holds them exactly.
    """
    if depth > _MOST_DEPTH:
        raise UnlikeError(
            f"{path[:_MOST_PATH]}… is inside {depth} objects and arrays, expected at most "
            f"{_MOST_DEPTH}"
        )
    classes = set(map(type, values))
    made = Kind(has_nulls=type(None) in classes)
    for name in sorted(_NAMES[kind] for kind in classes - {type(None)}):
        chosen = [value for value in values if _NAMES[type(value)] == name]
        made = merged(made, _plain_kind(name, chosen, path=path, depth=depth), path=path)
    return made


def _plain_kind(name: _Name, values: Sequence[Any], *, path: str, depth: int) -> Kind:
    if name == "float" and any(infinite in values for infinite in _INFINITE):
        _check_floats(values, path)
    if name == "int":
        return _checked(Kind("int", min(values), max(values)), path)
    if name == "string":
        _check_text("".join(values), path)
    if name == "struct":
        return Kind("struct", fields=_fields(values, path=path, depth=depth + 1))
    if name == "list":
        items = list(itertools.chain.from_iterable(values))
        item = kind_of(items, path=f"{path}[]", depth=depth + 1)
        if item.has_nulls and item.name in {"int", "float"}:
            raise UnlikeError(f"{path} has a null among the numbers of an array")
        return Kind("list", item=item)
    return Kind(name)


def _check_floats(values: Sequence[float], path: str) -> None:
    """Refuse numbers that became infinite when they were read; written ones are `constant`."""
    said = set(map(id, _INFINITE))
    if any(value in _INFINITE and id(value) not in said for value in values):
        raise UnlikeError(f"{path} has a number beyond the range of a float, about 1.8e308")


def _fields(values: Sequence[Mapping[str, Any]], *, path: str, depth: int) -> dict[str, Kind]:
    names = list(dict.fromkeys(itertools.chain.from_iterable(values)))
    for name in names:
        _check_text(name, path)
    return {
        name: kind_of(
            [value[name] for value in values if name in value],
            path=f"{path}.{name}" if path else name,
            depth=depth,
        )
        for name in names
    }


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = text[error.start].encode("unicode_escape").decode()
        raise UnlikeError(f"{path or 'a name'} holds {found}, half of a surrogate pair") from None


def merged(one: Kind, other: Kind, *, path: str) -> Kind:
    """Return the common kind of two kinds.

    Raises:
        UnlikeError: They have none, or no type holds the values exactly.
    """
    has_nulls = one.has_nulls or other.has_nulls
    if "null" in {one.name, other.name}:
        kept = other if one.name == "null" else one
        if kept.name in {"int", "float"} and path.endswith("[]") and has_nulls:
            raise UnlikeError(f"{path} has a null among the numbers of an array")
        return Kind(kept.name, kept.low, kept.high, kept.fields, kept.item, has_nulls)
    numbers = {one.name, other.name} <= {"int", "float"}
    if one.name != other.name and not numbers:
        raise UnlikeError(
            f"{path} is {_SHOWN[other.name]} here but {_SHOWN[one.name]} elsewhere; a column has "
            "one kind of value"
        )
    name: _Name = one.name if one.name == other.name else "float"
    low, high = min(one.low, other.low), max(one.high, other.high)
    item = None
    if one.item is not None and other.item is not None:
        item = merged(one.item, other.item, path=f"{path}[]")
    fields = _merged_fields(one.fields, other.fields, path=path)
    return _checked(Kind(name, low, high, fields, item, has_nulls), path)


def _merged_fields(
    one: Mapping[str, Kind], other: Mapping[str, Kind], *, path: str
) -> dict[str, Kind]:
    found = dict(one)
    for name, kind in other.items():
        inner = f"{path}.{name}" if path else name
        found[name] = merged(found[name], kind, path=inner) if name in found else kind
    return found


def _checked(kind: Kind, path: str) -> Kind:
    if kind.name == "float" and not -_EXACT <= kind.low <= kind.high <= _EXACT:
        raise UnlikeError(
            f"{path} has fractions and the whole number {_far(kind)}, which no float "
            "represents exactly"
        )
    if kind.name == "int" and _integer(kind) is None:
        raise UnlikeError(
            f"{path} has {_far(kind)}, expected whole numbers in the range of int64 or uint64"
        )
    return kind


def _far(kind: Kind) -> str:
    # Python refuses to print numbers with very many digits.
    far = max(kind.low, kind.high, key=abs)
    return str(far) if far.bit_length() < _MOST_BITS else f"a number of {far.bit_length()} bits"


def _integer(kind: Kind) -> pa.DataType | None:
    for type_, (low, end) in ((pa.int64(), _INT64), (pa.uint64(), _UINT64)):
        if low <= kind.low and kind.high < end:
            return type_
    return None


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the type that holds all values of a kind; text if all are null."""
    if kind.name == "int":
        found = _integer(kind)
        assert found is not None, "checked where it was made"
        return found
    if kind.name == "list":
        assert kind.item is not None, "a list has items"
        return pa.list_(arrow_type(kind.item))
    if kind.name == "struct":
        return pa.struct([pa.field(name, arrow_type(part)) for name, part in kind.fields.items()])
    return _PLAIN[kind.name]
