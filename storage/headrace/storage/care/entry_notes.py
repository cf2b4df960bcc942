"""Notes about finished shards that no manifest names yet, for their commit.

A note is JSON behind 16 hexadecimal digits, the XXH3-64 checksum of the JSON. Only the program that
wrote it, or one with the same rules, reads it. A note that cannot be read is ignored, and its
shards are written again.

A program that takes the shards of a note may meet `headrace gc`, for which they may be old enough
to remove. One of the two always sees the other:

1. A program that takes shards writes a new note about them, and then checks that the old note still
   exists. If it does not, it writes the shards again.
2. gc removes the old notes first, then reads all notes that are left, and spares their shards,
   however old these are.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xxhash

from headrace.errors import ObjectNotFoundError
from headrace.storage.dataset.pointer import MANIFEST_FOLDER
from headrace.storage.shard.block import BLOCK_DTYPE
from headrace.storage.shard.column_facts import ColumnStats
from headrace.storage.shard.shard_writer import SHARD_FOLDER, ShardEntry
from headrace.storage.store.store import Store

NOTE_PREFIX = f"{MANIFEST_FOLDER}/compact-"
"""The prefix of the names of notes."""

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


def noted_shards(store: Store, notes: Iterable[str]) -> set[str]:
    """Return the names in the store of all shards of notes; none for notes that are gone."""
    named: set[str] = set()
    for note in notes:
        with contextlib.suppress(ObjectNotFoundError):
            entries = decode_entries(store.read(note)) or ()
            named.update(f"{SHARD_FOLDER}/{entry.name}" for entry in entries)
    return named


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
