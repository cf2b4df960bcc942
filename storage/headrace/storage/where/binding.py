"""Turn a tree of ``where=`` into a function over record batches, checked against a schema.

Nulls follow SQL: a comparison with null is null, ``and``, ``or`` and ``not`` have three-valued
logic, and a sample is kept if the expression is true. Numbers are compared exactly as written with
integers and decimals, and in the column's type with floats.
"""

from __future__ import annotations

import decimal
import difflib
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from headrace.storage.shard.classes import classes_of
from headrace.storage.where.syntax import (
    Among,
    Column,
    Comparison,
    Conjunction,
    Disjunction,
    Literal,
    Negation,
    Node,
    Null,
    Truth,
    canonical,
    columns_of,
    fail,
    parse,
)

if TYPE_CHECKING:
    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

# The type of an array is known only at run time, but pyarrow's stubs depend on it.
_Array: TypeAlias = Any
_Mask: TypeAlias = Callable[[pa.RecordBatch], Any]
_compute: Any = pc
_arrow: Any = pa

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": _compute.equal,
    "!=": _compute.not_equal,
    "<": _compute.less,
    "<=": _compute.less_equal,
    ">": _compute.greater,
    ">=": _compute.greater_equal,
}
_PYTHON: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Beyond all integers and decimals of Arrow, whose largest has 76 digits.
_MAX_DIGITS = 100
_BITS_32 = 32
_EXACT = decimal.Context(prec=4 * _MAX_DIGITS)


@dataclass(frozen=True, slots=True)
class Filter:
    """A checked expression.

    Attributes:
        text: The expression in normal form.
        columns: The names of the columns that it reads, in the order of the schema.
        mask: Returns which samples of a batch are kept, ``(samples,) bool``.
    """

    text: str
    columns: tuple[str, ...]
    mask: Callable[[pa.RecordBatch], NDArray[np.bool_]]


def make_filter(where: str, schema: pa.Schema) -> Filter:
    """Check an expression against the columns of a dataset.

    Raises:
        BadArgumentError: It cannot be parsed, names an unknown column, or compares values that
            cannot be compared; the message points at the character.
    """
    node = parse(where)
    binder = _Binder(where, schema)
    bound = binder.bind(node)
    used = {binder.resolve(column).name for column in columns_of(node)}

    def mask(batch: pa.RecordBatch) -> NDArray[np.bool_]:
        kept = _compute.fill_null(bound(batch), fill_value=False)
        result: NDArray[np.bool_] = kept.to_numpy(zero_copy_only=False)
        return result

    return Filter(canonical(node), tuple(name for name in schema.names if name in used), mask)


@dataclass(frozen=True, slots=True)
class _ColumnPath:
    """A column of a batch, or a field of a struct in one."""

    name: str
    path: tuple[int, ...]
    field: Field

    def values(self, batch: pa.RecordBatch) -> _Array:
        """Return its values, including nulls from the structs around it."""
        column = batch.column(self.name)
        if self.path:
            column = _compute.struct_field(column, list(self.path))
        return _plain(column)

    @property
    def type(self) -> pa.DataType:
        """The type of the values."""
        kind: pa.DataType = self.field.type
        return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


def _plain(column: _Array) -> _Array:
    if isinstance(column.type, pa.DictionaryType):
        return column.cast(column.type.value_type)
    if pat.is_float16(column.type):
        return column.cast(pa.float32())
    return column


class _Binder:
    """Check a tree against a schema; errors show the text."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema

    def bind(self, node: Node) -> _Mask:
        """Return a function from a batch to an array of truth values or nulls."""
        match node:
            case Negation(of):
                inner = self.bind(of)
                return lambda batch: _compute.invert(inner(batch))
            case Conjunction(of):
                return _joined(_compute.and_kleene, [self.bind(each) for each in of])
            case Disjunction(of):
                return _joined(_compute.or_kleene, [self.bind(each) for each in of])
            case _:
                return self._predicate(node)

    def _predicate(self, node: Comparison | Among | Null | Truth) -> _Mask:
        match node:
            case Comparison(operator, Column() as left, Column() as right):
                return self._compared(operator, left, right, node.at)
            case Comparison(operator, Column() as left, Literal() as right):
                return self._compared_to(operator, left, right)
            case Among(column, values):
                return self._among(column, values)
            case Null(column):
                found = self.resolve(column)
                return lambda batch: _compute.is_null(found.values(batch))
            case Truth(column):
                return self._truth(column)
            case _:  # the parser puts columns to the left
                raise AssertionError(node)

    def resolve(self, column: Column) -> _ColumnPath:
        """Return the column of that name, or the field of a struct."""
        names, parts = self._schema.names, column.name.split(".")
        for count in range(len(parts), 0, -1):
            name = ".".join(parts[:count])
            if names.count(name) == 1:
                index = names.index(name)
                return self._field(column, self._schema.field(index), parts[count:])
        known = [*names, *_struct_fields(self._schema)]
        near = difflib.get_close_matches(column.name[:100], known[:1000], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {_listed(known)}"
        if column.is_quoted:
            hint += "; put texts in single quotes"
        return fail(self._text, column.at, f"there is no column {column.name[:100]!r}; {hint}")

    def _field(self, column: Column, outer: Field, rest: Sequence[str]) -> _ColumnPath:
        field, path = outer, []
        for name in rest:
            kind = field.type
            at = kind.get_field_index(name) if isinstance(kind, pa.StructType) else -1
            if at < 0:
                self._refuse(column, f"{field.name!r}, {field.type}, has no field {name!r}")
            assert isinstance(kind, pa.StructType)
            path.append(at)
            field = kind.field(at)
        return _ColumnPath(outer.name, tuple(path), field)

    def _truth(self, column: Column) -> _Mask:
        found = self.resolve(column)
        if not pat.is_boolean(found.type):
            self._refuse(
                column, f"{column.name} is {found.type}; expected a comparison, or a bool column"
            )
        return found.values

    def _compared(self, operator: str, left: Column, right: Column, at: int) -> _Mask:
        one, two = self.resolve(left), self.resolve(right)
        cast = _common_type(one.type, two.type)
        if (
            cast is None
            or not _is_comparable(cast)
            or (pat.is_boolean(cast) and operator not in "!=")
        ):
            fail(
                self._text,
                at,
                f"{left.name} is {one.type} and {right.name} is {two.type}; expected two columns "
                "that can be compared",
            )
        compare = _COMPARE[operator]
        return lambda batch: compare(one.values(batch).cast(cast), two.values(batch).cast(cast))

    def _compared_to(self, operator: str, column: Column, literal: Literal) -> _Mask:
        found = self.resolve(column)
        self._check_order(operator, column, found, literal)
        value = self._value(column, found, literal)
        if isinstance(value, Decimal):
            return _compared_exactly(operator, found, value)
        compare = _COMPARE[operator]
        return lambda batch: compare(found.values(batch), value)

    def _check_order(
        self, operator: str, column: Column, found: _ColumnPath, literal: Literal
    ) -> None:
        if operator in {"=", "!="}:
            return
        if pat.is_boolean(found.type):
            self._refuse(column, f"{column.name} is true or false; expected = or !=")
        if isinstance(literal.value, str) and _is_exact(found.type):
            wanted = "a number, or = and != for its classes"
            if classes_of(found.field) is None:
                wanted = "a number"
            fail(self._text, literal.at, f"{column.name} is {found.type}; expected {wanted}")

    def _among(self, column: Column, literals: Sequence[Literal]) -> _Mask:
        found = self.resolve(column)
        values = [self._value(column, found, literal) for literal in literals]
        if _is_exact(found.type):
            scalars = [_exact_scalar(value, found.type) for value in values]
            values = [each for each in scalars if each is not None]
        if pat.is_floating(found.type):
            floats = np.array([value.as_py() for value in values])
            return lambda batch: _floats_among(found.values(batch), floats)
        kind = found.type
        known = pa.array([value.as_py() for value in values], type=kind)

        def mask(batch: pa.RecordBatch) -> _Array:
            array = found.values(batch)
            return _where_valid(array, _compute.is_in(array, value_set=known))

        return mask

    def _value(self, column: Column, found: _ColumnPath, literal: Literal) -> Any:
        """Return a literal in the column's type: an Arrow scalar, or an exact number."""
        kind, value = found.type, literal.value
        if not _is_comparable(kind):
            self._refuse(column, f"{column.name} is {kind}; expected 'is null' or 'is not null'")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if _is_exact(kind):
            if isinstance(value, str):
                return self._class_number(column, found, literal)
            if is_number:
                return _exact(literal)
        elif pat.is_floating(kind):
            if is_number:
                return _float_scalar(float(Decimal(literal.text)), kind)
        elif pat.is_boolean(kind):
            if isinstance(value, bool):
                return pa.scalar(value)
        elif isinstance(value, str):
            return self._text_scalar(column, kind, literal)
        return self._wrong(column, found, literal)

    def _class_number(self, column: Column, found: _ColumnPath, literal: Literal) -> Decimal:
        names = classes_of(found.field)
        if names is None:
            self._wrong(column, found, literal)
        if literal.value not in names:
            near = difflib.get_close_matches(str(literal.value), names[:100_000], n=3)
            hint = (
                f"did you mean {' or '.join(map(repr, near))}?"
                if near
                else (f"there are {_listed([repr(name) for name in names])}")
            )
            fail(self._text, literal.at, f"{column.name} has no class {literal.text[:100]}; {hint}")
        return Decimal(names.index(str(literal.value)))

    def _text_scalar(self, column: Column, kind: pa.DataType, literal: Literal) -> Any:
        text = pa.scalar(literal.value, pa.string())
        if not pat.is_temporal(kind):
            return text.cast(kind)
        try:
            return _temporal_scalar(text, kind)
        except pa.ArrowException:
            fail(
                self._text,
                literal.at,
                f"{column.name} is {kind}; expected {_example(kind)}, not finer than its unit",
            )

    def _wrong(self, column: Column, found: _ColumnPath, literal: Literal) -> NoReturn:
        if pat.is_temporal(found.type):
            wanted = _example(found.type)
        elif pat.is_boolean(found.type):
            wanted = "true or false"
        else:
            wanted = "a number" if _is_number(found.type) else "a text in single quotes"
        fail(self._text, literal.at, f"{column.name} is {found.type}; expected {wanted}")

    def _refuse(self, column: Column, problem: str) -> NoReturn:
        fail(self._text, column.at, problem)


def _joined(join: Callable[[Any, Any], Any], masks: Sequence[_Mask]) -> _Mask:
    return lambda batch: functools.reduce(join, (mask(batch) for mask in masks))


def _is_exact(kind: pa.DataType) -> bool:
    return pat.is_integer(kind) or pat.is_decimal(kind)


def _is_number(kind: pa.DataType) -> bool:
    return _is_exact(kind) or pat.is_floating(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind)


def _is_comparable(kind: pa.DataType) -> bool:
    is_time = pat.is_date(kind) or pat.is_timestamp(kind) or pat.is_time(kind)
    return _is_number(kind) or pat.is_boolean(kind) or _is_text(kind) or is_time


def _common_type(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return the type in which two columns can be compared without loss, or None."""
    if _is_text(one) and _is_text(two):
        return pa.large_string()
    if pat.is_float16(one) and pat.is_float16(two):
        return pa.float32()
    if one == two:
        return one
    if pat.is_integer(one) and pat.is_integer(two):
        return _common_integer(one, two)
    if all(
        pat.is_floating(kind) or (pat.is_integer(kind) and kind.bit_width <= _BITS_32)
        for kind in (one, two)
    ):
        return pa.float64()
    return None


def _common_integer(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    if pat.is_signed_integer(one) == pat.is_signed_integer(two):
        return one if one.bit_width >= two.bit_width else two
    unsigned = two if pat.is_signed_integer(one) else one
    return pa.int64() if unsigned.bit_width <= _BITS_32 else None


def _exact(literal: Literal) -> Decimal:
    """Return a number exactly as written; one beyond all types as the next number beyond them."""
    value = Decimal(literal.text)
    if value and value.adjusted() > _MAX_DIGITS:
        return Decimal(10**_MAX_DIGITS).copy_sign(value)
    if value and value.adjusted() < -_MAX_DIGITS:
        return Decimal(1).scaleb(-_MAX_DIGITS).copy_sign(value)
    return value


def _bounds(kind: pa.DataType) -> tuple[int, int, int]:
    """Return the smallest and the largest value in units of the last place, and the scale."""
    if pat.is_decimal(kind):
        most = 10**kind.precision - 1
        return -most, most, kind.scale
    if pat.is_signed_integer(kind):
        return -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1, 0
    return 0, (1 << kind.bit_width) - 1, 0


def _exact_scalar(value: Decimal, kind: pa.DataType) -> Any:
    """Return a number as a scalar of a type; None if the type has no equal value."""
    least, most, scale = _bounds(kind)
    units = value.scaleb(scale, _EXACT)
    if units != units.to_integral_value(context=_EXACT) or not least <= units <= most:
        return None
    return _scalar_of(int(units), kind, scale)


def _scalar_of(units: int, kind: pa.DataType, scale: int) -> Any:
    value = Decimal(units).scaleb(-scale, _EXACT) if pat.is_decimal(kind) else units
    return pa.scalar(value, kind)


def _compared_exactly(name: str, found: _ColumnPath, value: Decimal) -> _Mask:
    """Compare integers or decimals with a number that their type may not represent."""
    kind = found.type
    least, most, scale = _bounds(kind)
    units = value.scaleb(scale, _EXACT)
    whole = int(units.to_integral_value(decimal.ROUND_FLOOR, _EXACT))
    is_whole = units == whole
    if name in {"=", "!="} and not is_whole:
        return _constant(found, value=name == "!=")
    if not is_whole:
        # There is no value between a number and its floor.
        name = {"<": "<=", ">=": ">"}.get(name, name)
    if not least <= whole <= most:
        # All values are on the same side of it as zero.
        return _constant(found, value=_PYTHON[name](0, whole))
    compare, scalar = _COMPARE[name], _scalar_of(whole, kind, scale)
    return lambda batch: compare(found.values(batch), scalar)


def _constant(found: _ColumnPath, *, value: bool) -> _Mask:
    def mask(batch: pa.RecordBatch) -> _Array:
        array = found.values(batch)
        return _where_valid(array, pa.scalar(value))

    return mask


def _where_valid(array: _Array, mask: _Array) -> _Array:
    return _compute.if_else(_compute.is_valid(array), mask, pa.scalar(None, pa.bool_()))


def _floats_among(array: _Array, values: NDArray[Any]) -> _Array:
    # Arrow's own function distinguishes 0.0 from -0.0.
    found = np.isin(array.to_numpy(zero_copy_only=False), values)
    return _where_valid(array, pa.array(found))


def _float_scalar(value: float, kind: pa.DataType) -> Any:
    if pat.is_float64(kind):
        return pa.scalar(value)
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.float16(value) if pat.is_float16(kind) else np.float32(value)
    return pa.scalar(float(narrow), pa.float32())


def _temporal_scalar(text: Any, kind: pa.DataType) -> Any:
    if not isinstance(kind, pa.TimestampType) or kind.tz is None:
        return text.cast(kind)
    try:
        return text.cast(kind)
    except pa.ArrowException:
        # Without an offset it is UTC.
        return pa.scalar(text.cast(pa.timestamp(kind.unit)).value, kind)


def _example(kind: pa.DataType) -> str:
    if pat.is_date(kind):
        return "a date such as '2013-06-30'"
    return (
        "a time such as '18:30:00'"
        if pat.is_time(kind)
        else ("a time such as '2013-06-30 18:30:00'")
    )


def _struct_fields(schema: pa.Schema) -> list[str]:
    return [
        f"{field.name}.{inner.name}"
        for field in schema
        if isinstance(field.type, pa.StructType)
        for inner in field.type
    ]


def _listed(names: Sequence[str]) -> str:
    few = ", ".join(names[:10])
    return few if len(names) <= 10 else f"{few} and {len(names) - 10} more"  # noqa: PLR2004
