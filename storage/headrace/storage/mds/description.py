"""Compare what a shard says about itself with what the index says about it.

A shard repeats its columns in its header, behind the offsets of its samples. Mosaic's own reader
never looks there. So a name that was damaged in ``index.json`` reads as another column, and this is
what tells.
"""

from __future__ import annotations

import json

from headrace.storage.mds.damage import DamageError
from headrace.storage.mds.shard_schema import ShardSchema

MAX_DESCRIPTION_BYTES = 16 << 20  # arbitrary; a hundred thousand columns
_REST_BYTES = 512  # more than the other facts that a writer puts there
_KEYS = ("column_names", "column_encodings", "column_sizes")


class DescriptionError(DamageError):
    """A shard and the index give different columns; either is damaged."""


def expected_bytes(schema: ShardSchema) -> int:
    """Return how many bytes to read for the description of a shard, which is rarely longer."""
    return len(json.dumps(_columns(schema))) + _REST_BYTES


def check_length(length: int) -> None:
    """Refuse a description that is too long to be read.

    Raises:
        DamageError: It is.
    """
    if length > MAX_DESCRIPTION_BYTES:
        raise DamageError(
            f"the header describes its columns in {length} bytes, at most {MAX_DESCRIPTION_BYTES} "
            "expected"
        )


def check_description(content: bytes, schema: ShardSchema) -> None:
    """Compare names, encodings and sizes of columns.

    Args:
        content: The description in the header of a shard; empty if its writer made none.
        schema: What the index says.

    Raises:
        DescriptionError: They differ.
        DamageError: It is not a description.
    """
    if not content:
        return
    try:
        stated = json.loads(content)
        found = {key: stated[key] for key in _KEYS}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamageError(f"the header does not describe its columns: {error!s:.200}") from error
    for key, wanted in _columns(schema).items():
        if found[key] != wanted:
            raise DescriptionError(
                f"its header gives {key} {_shown(found[key])}, but the index {_shown(wanted)}"
            )


def _columns(schema: ShardSchema) -> dict[str, object]:
    values = (
        list(schema.names),
        [encoding.text for encoding in schema.encodings],
        list(schema.sizes),
    )
    return dict(zip(_KEYS, values, strict=True))


def _shown(value: object) -> str:
    return f"{value!s:.300}"
