"""The names of a column's classes: ``headrace.classes``, in a field's metadata.

A column of labels holds integers; value i means ``names[i]``. The names are part of the schema of
the shards and of the manifest, so they are stored, versioned and fingerprinted with the samples. A
version that appends samples may add names only at the end, so stored values never change their
meaning.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    Field = pa.Field[Any]  # generic only in pyarrow's stubs

CLASSES_KEY = b"headrace.classes"
"""Metadata of a field of integers, or of lists of them: a JSON list of the names of its values."""

MAX_CLASSES_BYTES = 4 << 20  # of JSON; a shard of 64 MiB holds it twice


def holds_classes(kind: pa.DataType) -> bool:
    """Return whether values of a type can be numbers of classes: integers, or lists of them."""
    while isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        kind = kind.value_type
    return pa.types.is_integer(kind)


def classes_of(field: Field) -> tuple[str, ...] | None:
    """Return the names of a column's classes; value i of the column means the i-th name.

    Returns:
        The names, or `None` if the column has no classes.

    Raises:
        ValueError: The metadata does not hold a list of different names, or the column holds no
            integers.
    """
    text = (field.metadata or {}).get(CLASSES_KEY)
    if text is None:
        return None
    names = json.loads(text)
    problem = "no list" if not isinstance(names, list) else _problem(names, field.type)
    if problem is not None:
        raise ValueError(f"the classes of column {field.name!r} are {problem}")
    return tuple(names)


def with_classes(field: Field, names: Sequence[str]) -> Field:
    """Return a field with names of classes for its values.

    Args:
        field: A field of integers, or of lists of them.
        names: The names of the classes; value i means ``names[i]``.

    Raises:
        BadArgumentError: A name is empty, repeated or not text, there are too many, or the column
            does not hold integers.
    """
    problem = _problem(names, field.type)
    if problem is not None:
        raise BadArgumentError(
            f"the classes of column {field.name!r} are {problem}; expected distinct names for a "
            "column of integers, the i-th for the value i",
            field="classes",
        )
    metadata: dict[bytes | str, bytes | str] = dict((field.metadata or {}).items())
    return field.with_metadata({**metadata, CLASSES_KEY: _encoded(names)})


def without_classes(field: Field) -> Field:
    """Return a field without names of classes."""
    metadata: dict[bytes | str, bytes | str] = {
        key: value for key, value in (field.metadata or {}).items() if key != CLASSES_KEY
    }
    return field.with_metadata(metadata) if metadata else field.remove_metadata()


def merged_classes(
    before: Sequence[str], after: Sequence[str], *, column: str, place: str
) -> tuple[str, ...]:
    """Return the classes of a dataset after samples are appended to it.

    Args:
        before: The names of the dataset.
        after: The names that the new samples were written with.
        column: The column of the labels, for the error.
        place: The place of the dataset, for the error.

    Raises:
        BadArgumentError: A number stands for different classes.
    """
    for number, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            raise BadArgumentError(
                f"class {number} of column {column!r} is {old!r} in the dataset {place} but "
                f"{new!r} in the samples to append; number classes as the dataset does, with new "
                "ones at the end. If there was another append in between, convert again",
                field="classes",
            )
    return tuple(after if len(after) > len(before) else before)


def classes_in_features(features: object) -> dict[str, tuple[str, ...]]:
    """Return the classes in metadata of Hugging Face Datasets, by column.

    Args:
        features: The ``features`` of the metadata; entries in an unknown form are ignored.
    """
    known: Mapping[str, object] = features if isinstance(features, Mapping) else {}
    found = {str(name): _label_names(feature) for name, feature in known.items()}
    return {name: names for name, names in found.items() if names}


def _label_names(feature: object) -> tuple[str, ...]:
    """Return the names of a ``ClassLabel``, or of a list of them."""
    if isinstance(feature, list) and len(feature) == 1:
        return _label_names(feature[0])
    if not isinstance(feature, Mapping):
        return ()
    kind = feature.get("_type")
    if kind in {"Sequence", "List", "LargeList"}:
        return _label_names(feature.get("feature"))
    names = feature.get("names")
    fits = kind == "ClassLabel" and isinstance(names, list) and not _names_problem(names)
    return tuple(names) if fits and isinstance(names, list) else ()


def _problem(names: Sequence[object], kind: pa.DataType) -> str | None:
    if not holds_classes(kind):
        return f"names for {kind}"
    return _names_problem(names)


def _names_problem(names: Sequence[object]) -> str | None:
    if not names or isinstance(names, str):
        return "no names"
    for name in names:
        if not isinstance(name, str) or not name:
            return f"not all names: {name!r} is among them"
        if not _is_unicode(name):
            return f"not all Unicode: {name!a} is among them"
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        return f"not distinct: {twice!r} occurs twice"
    size = len(_encoded(names))
    if size > MAX_CLASSES_BYTES:
        return f"{len(names):,} names of {size:,} bytes, above the limit of {MAX_CLASSES_BYTES:,}"
    return None


def _encoded(names: Sequence[object]) -> bytes:
    return json.dumps(list(names), ensure_ascii=False, separators=(",", ":")).encode()


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
