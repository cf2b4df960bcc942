"""Detect the formats of binary columns from the first bytes of all values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.storage import FORMAT_KEY

if TYPE_CHECKING:
    Array = pa.Array[Any]  # generic only in pyarrow's stubs

UNKNOWN = ""
"""Marks values of several formats, or of an unknown one."""

_WIDTH = 12  # bytes that are enough to distinguish all formats
# Bytes at the start of a file, by their places, from the specification of each format.
_MARKS: dict[str, dict[int, bytes]] = {
    "bmp": {0: b"BM", 6: b"\0\0\0\0"},
    "gif": {0: b"GIF8"},
    "jpeg": {0: b"\xff\xd8\xff"},
    "png": {0: b"\x89PNG\r\n\x1a\n"},
    "tiff": {0: b"II*\0"},
    "webp": {0: b"RIFF", 8: b"WEBP"},
}


class Formats:
    """The formats of binary columns in the samples seen so far."""

    def __init__(self, schema: pa.Schema) -> None:
        """Watch the binary columns without a declared format."""
        self._found: dict[str, str | None] = {
            field.name: None
            for field in schema
            if pa.types.is_binary(field.type) and FORMAT_KEY not in (field.metadata or {})
        }

    @property
    def found(self) -> dict[str, str]:
        """The format of each column, or `UNKNOWN`; columns without values are left out."""
        return {name: form for name, form in self._found.items() if form is not None}

    def see(self, batch: pa.RecordBatch) -> None:
        """Add samples."""
        for name, known in self._found.items():
            if known != UNKNOWN:
                self._found[name] = _merged(known, _format_of(batch.column(name)))


def schema_with_formats(schema: pa.Schema, found: Iterable[Mapping[str, str]]) -> pa.Schema:
    """Return a schema with the formats of columns on which all parts agree.

    Args:
        schema: The schema of the samples.
        found: The results of `Formats` for each part.
    """
    merged: dict[str, str | None] = {}
    for part in found:
        for name, form in part.items():
            merged[name] = _merged(merged.get(name), form)
    for name, known in merged.items():
        if known:
            at = schema.get_field_index(name)
            field = schema.field(at)
            metadata: dict[bytes | str, bytes | str] = {FORMAT_KEY: known.encode()}
            metadata.update((field.metadata or {}).items())
            schema = schema.set(at, field.with_metadata(metadata))
    return schema


def _merged(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return other if one is None else one
    return one if one == other else UNKNOWN


def _format_of(column: Array) -> str | None:
    values = column.drop_null()
    if not len(values):
        return None
    heads = _heads(values)
    for form, marks in _MARKS.items():
        if all((heads[:, at : at + len(m)] == list(m)).all() for at, m in marks.items()):
            return form
    return UNKNOWN


def _heads(values: Array) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return the first bytes of each value, ``(values, 12) uint8``; short ones end in zeros."""
    offsets = np.frombuffer(memoryview(values.buffers()[1] or b""), np.int32)
    edges = offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.frombuffer(memoryview(values.buffers()[2] or b""), np.uint8)
    if not len(content):
        return np.zeros((len(values), _WIDTH), np.uint8)
    places = edges[:-1, np.newaxis] + np.arange(_WIDTH)
    taken = content[np.minimum(places, len(content) - 1)]
    return np.where(places < edges[1:, np.newaxis], taken, np.uint8(0))
