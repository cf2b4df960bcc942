"""Types that are declared for columns, where the columns are still text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa


def read_types(
    types: Mapping[str, pa.DataType], columns: Sequence[str] | Mapping[str, str] | None
) -> dict[str, pa.DataType]:
    """Return declared types by the names that columns have where they are read.

    Args:
        types: The types by the names that columns get.
        columns: See `headrace.converter.write_shards`.
    """
    old = {new: old for old, new in columns.items()} if isinstance(columns, Mapping) else {}
    return {old.get(name, name): kind for name, kind in types.items()}
