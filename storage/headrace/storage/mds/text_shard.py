"""Decode text shards: lines of JSON, or of separated values.

The same package writes them; each has a second file with offsets, which is not read here because
the lines give the same. A sample is a line and takes Python work, so they are much slower than
binary shards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.mds.arrow import MAX_NARROW
from headrace.storage.mds.damage import DamageError
from headrace.storage.mds.encoding import Encoding, parse_encoding
from headrace.storage.mds.samples import Bytes

_SEPARATORS: Mapping[str, str | None] = {"json": None, "csv": ",", "tsv": "\t", "xsv": None}
_ENCODINGS = {"str": "str", "int": "int", "float": "float64"}
_CASTS: Mapping[str, Callable[[Any], object]] = {"str": str, "int": int, "float64": float}
_TYPES: Mapping[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float64": (float, int)}
_MAX_MARK = 100  # arbitrary


@dataclass(frozen=True, slots=True)
class TextForm:
    """The format of a text shard.

    Attributes:
        format: ``json``, ``csv``, ``tsv`` or ``xsv``.
        newline: The end of a line.
        separator: The separator of values, or `None` for JSON.
    """

    format: str
    newline: str
    separator: str | None

    def __post_init__(self) -> None:
        for mark in (self.newline, self.separator):
            if mark is not None and not (isinstance(mark, str) and 0 < len(mark) <= _MAX_MARK):
                raise ValueError(f"{str(mark)[:100]!r} is not a valid newline or separator")
            (mark or "").encode()  # half a surrogate pair is a ValueError
        if self.format not in _SEPARATORS:
            raise ValueError(f"{str(self.format)[:100]!r} is not a text format")
        if (self.separator is None) != (self.format == "json"):
            raise ValueError(f"separator {self.separator!r} in a shard of {self.format}")


def text_form(value: Mapping[str, object]) -> TextForm | None:
    """Return the format of a shard in an index, or `None` if it is not a text shard.

    Raises:
        ValueError: The format is impossible.
        KeyError: A part of it is missing.
    """
    form = str(value["format"])
    if form not in _SEPARATORS:
        return None
    separator: Any = value["separator"] if form == "xsv" else _SEPARATORS[form]
    newline: Any = value["newline"]
    return TextForm(form, newline, separator)


def text_encoding(text: object) -> Encoding:
    """Return the encoding of a text column.

    Raises:
        ValueError: There is no such encoding.
    """
    if text not in _ENCODINGS:
        raise ValueError(f"encoding {str(text)[:100]!r} is not one of {', '.join(_ENCODINGS)}")
    return parse_encoding(_ENCODINGS[str(text)])


def line_offsets(
    raw: Bytes, form: TextForm, names: Sequence[str], *, sample_count: int
) -> NDArray[np.int64]:
    """Return the starts of the samples' lines, and the end of the last, ``(samples + 1,)``.

    Args:
        raw: The whole file.
        form: The format of the file.
        names: The names of the columns, which are in the first line except for JSON.
        sample_count: The number of samples according to the index.

    Raises:
        DamageError: There are more or fewer lines, or the first one differs.
    """
    content = raw.tobytes()
    start = 0
    if form.separator is not None:
        head = (form.separator.join(names) + form.newline).encode()
        if not content.startswith(head):
            found, wanted = content[:100], head[:100]
            raise DamageError(
                f"its first line starts with {found!r}, but the index says {wanted!r}"
            )
        start = len(head)
    newline = re.escape(form.newline.encode())
    ends = [match.end() for match in re.compile(newline).finditer(content, start)]
    if len(ends) != sample_count or (ends[-1] if ends else start) != len(content):
        raise DamageError(f"{len(ends)} whole lines found, but the index says {sample_count}")
    return np.array([start, *ends], np.int64)


def decode_lines(
    content: Bytes,
    offsets: NDArray[np.int64],
    form: TextForm,
    *,
    names: Sequence[str],
    encodings: Sequence[Encoding],
) -> dict[str, pa.Array[Any]]:
    """Return the columns of some samples.

    Args:
        content: The bytes of their lines.
        offsets: ``(samples + 1,)``; the starts of lines, and the end of the last.
        form: The format of the file.
        names: The names of the columns.
        encodings: The encoding for each name.

    Raises:
        DamageError: A line is not a sample; the message says which.
    """
    values: list[list[object]] = [[] for _ in names]
    text, end = content.tobytes(), len(form.newline.encode())
    read = _json_values if form.separator is None else _separated_values
    for sample, (start, stop) in enumerate(pairwise(offsets.tolist())):
        try:
            found = read(text[start : stop - end].decode(), form, names, encodings)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"no value of {error}" if isinstance(error, KeyError) else str(error)
            raise DamageError(what[:300], sample) from error
        for column, value in zip(values, found, strict=True):
            column.append(value)
    kinds: dict[str, pa.DataType] = {"int": pa.int64(), "float64": pa.float64()}
    string = pa.large_string() if len(text) > MAX_NARROW else pa.string()
    return {
        name: _column(column, kinds.get(encoding.text, string), name)
        for name, encoding, column in zip(names, encodings, values, strict=True)
    }


def _column(values: list[object], kind: pa.DataType, name: str) -> pa.Array[Any]:
    try:
        column: pa.Array[Any] = pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise DamageError(f"column {name!r}: {error}") from error
    return column


def _json_values(
    line: str, form: TextForm, names: Sequence[str], encodings: Sequence[Encoding]
) -> list[object]:
    del form
    sample = json.loads(line)
    if not isinstance(sample, dict):
        raise ValueError("a line that is not a JSON object")  # noqa: TRY004 - the file's fault, not a type's
    found: list[object] = []
    for name, encoding in zip(names, encodings, strict=True):
        value = sample[name]
        if not isinstance(value, _TYPES[encoding.text]):
            raise ValueError(  # noqa: TRY004 - as above
                f"column {name!r}: {str(value)[:100]!r} is not a value of type {encoding.text}"
            )
        found.append(_CASTS[encoding.text](value))
    return found


def _separated_values(
    line: str, form: TextForm, names: Sequence[str], encodings: Sequence[Encoding]
) -> list[object]:
    parts = line.split(form.separator)
    if len(parts) != len(names):
        raise ValueError(f"{len(parts)} values in a line, {len(names)} expected")
    return [_CASTS[encoding.text](part) for encoding, part in zip(encodings, parts, strict=True)]
