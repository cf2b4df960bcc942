"""Declared types of columns, by the names that the columns have in text files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa


def read_types(
    types: Mapping[str, pa.DataType], columns: Sequence[str] | Mapping[str, str] | None
) -> dict[str, pa.DataType]:
    """Return declared types by the names of columns in the files.

    Args:
        types: The types by the names of columns in the dataset.
        columns: See `headrace.converter.write_shards`.
    """
    old = {new: old for old, new in columns.items()} if isinstance(columns, Mapping) else {}
    return {old.get(name, name): kind for name, kind in types.items()}
