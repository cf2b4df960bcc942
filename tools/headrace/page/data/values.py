"""Format values for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.cli.show.pictures import is_image_shape, media_type, shape_of
from headrace.cli.show.python_values import python_value
from headrace.cli.show.texts import counted, value_text
from headrace.page.data.media import sound_type
from headrace.storage import FORMAT_KEY, Tokenizer, classes_of

Kind = Literal["null", "text", "number", "image", "sound", "numbers", "bytes", "class"]

MAX_CHARACTERS: Final = 16_384
"""Of a text that is shown in full; browsers are slow with much longer ones."""
_MAX_NUMBERS: Final = 1024
_SHORT: Final = 240
_SHORT_NUMBERS: Final = 24
_MAX_TOKENS: Final = 4096
_SHORT_TOKENS: Final = 64
_MIN_SIDE: Final = 4


@dataclass(frozen=True, slots=True)
class PageValue:
    """A value to show on a page.

    Attributes:
        column: The name of its column.
        kind: The kind, which decides how it is drawn.
        text: The value as text; `note` says what was cut off.
        note: Additional facts, such as a shape or a length.
    """

    column: str
    kind: Kind
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and how its values are shown.

    Attributes:
        name: Its name.
        type: Its Arrow type.
        is_nullable: Whether a value may be null.
        form: Its `headrace.format`, such as ``bfloat16``, or an empty text.
        classes: The names of its classes; None if it has none.
    """

    name: str
    type: pa.DataType
    is_nullable: bool
    form: str
    classes: tuple[str, ...] | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of all values; () if it is not fixed."""
        shape, item = shape_of(self.type)
        return shape if pa.types.is_primitive(item) else ()

    @property
    def is_raster(self) -> bool:
        """Return whether values are drawn as pictures: 2D, optionally with 1, 3 or 4 channels."""
        return is_image_shape(self.shape) and min(self.shape[:2]) >= _MIN_SIDE

    def shown(self, scalar: Any, *, is_whole: bool = False) -> PageValue:
        """Return a value to show.

        Args:
            scalar: The value, as an Arrow scalar.
            is_whole: Whether to show long values in full.
        """
        if not scalar.is_valid:
            return PageValue(self.name, "null", "null", "missing, unlike 0 or an empty value")
        if self.is_raster:
            return PageValue(self.name, "image", " x ".join(map(str, self.shape)), str(self.type))
        if _is_list(self.type):
            return _numbers(self, scalar, _MAX_NUMBERS if is_whole else _SHORT_NUMBERS)
        return self._shown(python_value(scalar), is_whole=is_whole)

    def _shown(self, value: object, *, is_whole: bool) -> PageValue:
        if self.classes is not None and isinstance(value, int):
            return _class(self.name, value, self.classes)
        if isinstance(value, str | dict):
            return _text(self.name, str(value), MAX_CHARACTERS if is_whole else _SHORT)
        if isinstance(value, bytes):
            return _bytes(self.name, value)
        return PageValue(self.name, "number", value_text(value, self.form))


def columns_of(schema: pa.Schema) -> list[Column]:
    """Return the columns of a dataset."""
    return [_column(schema.field(index)) for index in range(len(schema))]


def text_of_tokens(
    scalar: Any, shown: PageValue, tokenizer: Tokenizer, *, is_whole: bool = False
) -> PageValue:
    """Return a list of token ids as text, with the ids as a note.

    Ids that the tokenizer does not have are shown as numbers, with a note.
    """
    if shown.kind != "numbers" or not shown.text:
        return shown
    values = scalar.value.values if hasattr(scalar, "value") else scalar.values
    most = _MAX_TOKENS if is_whole else _SHORT_TOKENS
    ids = values.slice(0, most).to_pylist()
    text = tokenizer.decode(ids) if all(isinstance(one, int) for one in ids) else None
    if text is None:
        return PageValue(
            shown.column, shown.kind, shown.text, f"{shown.note}, not in the tokenizer"
        )
    more = f"; the first {most:,} as text" if len(values) > most else ""
    return PageValue(
        shown.column, "text", text[:MAX_CHARACTERS], f"{shown.note}: {shown.text}{more}"
    )


def array_of(scalar: Any, shape: Sequence[int]) -> NDArray[Any] | None:
    """Return a value of a column with a shape as an array; None if it contains nulls."""
    flat: Any = scalar.value if hasattr(scalar, "value") else scalar
    flat = flat.values
    while _is_list(flat.type):
        if flat.null_count:
            return None
        flat = flat.flatten()
    if flat.null_count or len(flat) != math.prod(shape):
        return None
    found: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return found.reshape(shape)


def pixels_of(values: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """Return an array as pixels, with uint8 unchanged and others scaled to grey, and a note."""
    if values.dtype == np.uint8:
        return values, "bytes as they are"
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    if not finite.any():
        return np.zeros(values.shape, np.uint8), "no finite numbers"
    low, high = float(numbers[finite].min()), float(numbers[finite].max())
    scaled = (np.where(finite, numbers, low) - low) / ((high - low) or 1.0)
    return (scaled * 255).astype(np.uint8), f"black is {low:.4g}, white is {high:.4g}"


def _column(field: Any) -> Column:
    form = (field.metadata or {}).get(FORMAT_KEY, b"").decode(errors="replace")
    try:
        classes = classes_of(field)
    except ValueError:
        # The metadata is untrusted; treat the column as numbers.
        classes = None
    return Column(field.name, field.type, field.nullable, form, classes)


def _is_list(kind: Any) -> bool:
    return isinstance(
        kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.FixedShapeTensorType
    )


def _class(column: str, value: int, classes: Sequence[str]) -> PageValue:
    # Python would take a negative number as an index from the end.
    if 0 <= value < len(classes):
        return PageValue(column, "class", classes[value][:_SHORT], f"class {value}")
    return PageValue(column, "number", str(value), "none of the classes")


def _text(column: str, value: str, most: int) -> PageValue:
    if not value:
        return PageValue(column, "text", "", "empty text")
    note = f"{len(value):,} characters, the first {most:,} shown" if len(value) > most else ""
    return PageValue(column, "text", value[:most], note)


def _bytes(column: str, value: bytes) -> PageValue:
    text = value_text(value)
    if media_type(value) is not None:
        return PageValue(column, "image", text)
    if (media := sound_type(value)) is not None:
        return PageValue(column, "sound", text, media)
    return PageValue(column, "bytes", text)


def _numbers(column: Column, scalar: Any, most: int) -> PageValue:
    values = scalar.value.values if hasattr(scalar, "value") else scalar.values
    if not len(values):
        return PageValue(column.name, "numbers", "", "an empty list")
    items = [python_value(each) for each in values.slice(0, most)]
    texts = [_item(item, column.form, column.classes) for item in items]
    more = " …" if len(values) > most else ""
    shape = " x ".join(map(str, column.shape)) or counted(len(values), "item")
    return PageValue(column.name, "numbers", " ".join(texts) + more, shape)


def _item(item: object, form: str, classes: Sequence[str] | None) -> str:
    if classes is not None and isinstance(item, int) and 0 <= item < len(classes):
        return f"{item} {classes[item][:_SHORT]}"
    if isinstance(item, list):
        inner = ", ".join(value_text(each, form) for each in item[:_SHORT_NUMBERS])
        return f"[{inner}{', …' if len(item) > _SHORT_NUMBERS else ''}]"
    return value_text(item, form)
