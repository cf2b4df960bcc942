"""The fingerprint of a dataset version: BLAKE2b-128 over canonical rows.

It hashes values in a fixed layout and not the bytes of files, so the fingerprint does not depend on
how a library writes Arrow. Names and offsets are left out, because they say where samples are, not
what they are.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.shard.classes import classes_of
from headrace.storage.shard.types import schema_texts

FINGERPRINT_BYTES = 16
_PREFIX = b"headrace manifest v2\n"
_CANONICAL_BLOCK = np.dtype([("sample_count", "<i8"), ("raw_bytes", "<i8"), ("checksum", "<u8")])


def page_digest(blocks: NDArray[np.void]) -> bytes:
    """Return the BLAKE2b-128 digest of rows of a block table.

    Args:
        blocks: A structured array with at least ``sample_count``, ``raw_bytes`` and ``checksum``.
            Each row is hashed as three little-endian 64-bit integers in this order.
    """
    rows = np.empty(len(blocks), _CANONICAL_BLOCK)
    for name in _CANONICAL_BLOCK.names or ():
        rows[name] = blocks[name]
    return hashlib.blake2b(rows.tobytes(), digest_size=FINGERPRINT_BYTES).digest()


def fingerprint_of(
    *,
    served: pa.Schema,
    stored: pa.Schema,
    sample_counts: NDArray[np.int64],
    raw_bytes: NDArray[np.int64],
    block_counts: NDArray[np.int64],
    block_samples: NDArray[np.int64],
    page_digests: list[bytes],
) -> str:
    """Return the fingerprint, 32 hexadecimal digits.

    The hash covers the prefix ``headrace manifest v2`` and a line feed; the length and the bytes of
    the JSON text ``[served columns, stored columns]``, where a served column with classes also has
    their names; the number of shards; the samples, raw bytes, blocks and block samples of each
    shard; the number of pages; their digests. Numbers are little-endian 64-bit integers.

    Args:
        served: The columns that readers see.
        stored: The columns that shards hold.
        sample_counts: ``(shards,)``.
        raw_bytes: ``(shards,)``.
        block_counts: ``(shards,)``.
        block_samples: ``(shards,)``, samples of every block of a shard except for its last, or 0 if
            blocks differ.
        page_digests: One for each page of the block table.
    """
    texts = json.dumps(
        [_served_texts(served), schema_texts(stored)], separators=(",", ":"), ensure_ascii=True
    ).encode()
    columns = [sample_counts, raw_bytes, block_counts, block_samples]
    shards = np.column_stack(columns).astype("<i8")
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    digest.update(_PREFIX)
    digest.update(_number(len(texts)) + texts)
    digest.update(_number(len(shards)) + shards.tobytes())
    digest.update(_number(len(page_digests)) + b"".join(page_digests))
    return digest.hexdigest()


def _served_texts(served: pa.Schema) -> list[list[object]]:
    """Return the columns, each followed by the names of its classes if it has any.

    The same numbers with other names are other samples. Columns without names hash as before.
    """
    return [
        [*text, *([list(names)] if (names := classes_of(field)) is not None else [])]
        for text, field in zip(schema_texts(served), served, strict=True)
    ]


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")
