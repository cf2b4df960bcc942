"""Notes about finished shards that no manifest names yet, for their commit.

A note is JSON behind 16 hexadecimal digits, the XXH3-64 checksum of the JSON. Only the program that
wrote it, or one with the same rules, reads it. A note that cannot be read is ignored, and its
shards are written again.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from headrace.storage.shard.block import BLOCK_DTYPE
from headrace.storage.shard.column_facts import ColumnStats
from headrace.storage.shard.shard_writer import ShardEntry

_DIGITS = 16


def encode_entries(entries: Sequence[ShardEntry]) -> bytes:
    """Return the note about shards."""
    content = json.dumps([_facts(entry) for entry in entries]).encode()
    return xxhash.xxh3_64_hexdigest(content).encode() + content


def decode_entries(note: bytes) -> list[ShardEntry] | None:
    """Return the shards of a note, or `None` if it is damaged or has other rules."""
    digest, content = note[:_DIGITS], note[_DIGITS:]
    if digest != xxhash.xxh3_64_hexdigest(content).encode():
        return None
    try:
        return [_entry(facts) for facts in json.loads(content)]
    except (ValueError, TypeError, KeyError, binascii.Error):
        return None


def _facts(entry: ShardEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "stored_bytes": entry.stored_bytes,
        "blocks": base64.b64encode(entry.blocks.tobytes()).decode(),
        "columns": [[part.null_count, part.shortest, part.longest] for part in entry.columns],
    }


def _entry(facts: dict[str, Any]) -> ShardEntry:
    blocks = np.frombuffer(base64.b64decode(facts["blocks"], validate=True), BLOCK_DTYPE)
    if not len(blocks) or not isinstance(facts["name"], str) or "/" in facts["name"]:
        raise ValueError("no shard")
    return ShardEntry(
        name=facts["name"],
        stored_bytes=int(facts["stored_bytes"]),
        blocks=blocks,
        columns=tuple(ColumnStats(*part) for part in facts["columns"]),
    )
