"""The frame of a shard's blocks: Arrow's header before them and its footer after them.

No checksum covers it, and our own reads do not need it. But other programs that open the file do,
so its schema and the places of its blocks must be those of the manifest.

Source: Arrow's "IPC File Format" and File.fbs, and the "FlatBuffer Internals".
"""

from __future__ import annotations

import struct
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.shard.column_facts import is_shard_schema

_MAGIC = b"ARROW1"
_HEAD_MAGIC = _MAGIC + b"\0\0"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_TAIL = struct.Struct("<I6s")
_VERSION = 4  # Arrow's V5, the only version that is written
_BLOCK = np.dtype(
    {
        "names": ["offset", "metadata_bytes", "body_bytes"],
        "formats": ["<i8", "<i4", "<i8"],
        "offsets": [0, 8, 16],
        "itemsize": 24,
    }
)
_PREFIX_BYTES = 8  # of a message: the continuation marker, and the length of its metadata
_SCHEMA_KIND = 1
# Field numbers of Message and Footer.
_KIND_FIELD = 1
_VERSION_FIELD, _DICTIONARIES_FIELD, _BODY_FIELD, _BLOCKS_FIELD, _METADATA_FIELD = 0, 2, 3, 3, 4


def frame_problem(
    head: bytes, tail: bytes, *, schema: pa.Schema, rows: NDArray[np.void]
) -> str | None:
    """Return what is wrong before the first block or after the last one; None if nothing is.

    Args:
        head: All bytes before the first block.
        tail: All bytes after the last block, up to the end of the file.
        schema: The stored schema of the dataset, see `is_shard_schema`.
        rows: Its rows of the block table, ``(blocks,)`` of `BLOCK_DTYPE`.
    """
    try:
        return _problem(head, tail, schema, rows)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error) as error:
        return f"Arrow's header or footer cannot be read: {error}"


def _problem(head: bytes, tail: bytes, schema: pa.Schema, rows: NDArray[np.void]) -> str | None:
    length, magic = _TAIL.unpack(tail[-_TAIL.size :])
    start = len(tail) - _TAIL.size - length
    mark = tail[max(0, start - len(_END)) : max(0, start)]
    if mark != _END or magic != _MAGIC:
        return (
            f"after its blocks are {mark!r}, a footer of {length} bytes and {magic!r}, expected "
            f"{_END!r}, at most {len(tail) - len(_END) - _TAIL.size} bytes and {_MAGIC!r}"
        )
    footer = tail[start : -_TAIL.size]
    # A file without blocks; their places are compared below.
    file = pa.ipc.open_file(pa.py_buffer(_HEAD_MAGIC + footer + tail[-_TAIL.size :]))
    if not is_shard_schema(file.schema, schema):
        return "the schema in its footer differs from the manifest's"
    places = _places(footer)
    if places is None:
        return "its footer has another version, metadata or dictionaries"
    end, problem = _header(head, file.schema)
    if problem is not None:
        return problem
    before_tail = int(rows[-1]["offset"] + rows[-1]["stored_bytes"])
    if not _are_stated(places, rows, start=end, stop=before_tail + start - len(_END)):
        return "the offsets of blocks in its footer differ from the manifest's"
    return None


def _places(footer: bytes) -> NDArray[np.void] | None:
    """Return the places of blocks in the footer, or `None` if it has contents that ours lack."""
    fields = _root_fields(footer)
    is_ours = _number(footer, fields.get(_VERSION_FIELD), "<h") == _VERSION
    if not is_ours or _METADATA_FIELD in fields:
        return None
    if len(_vector(footer, fields.get(_DICTIONARIES_FIELD))):
        return None
    return _vector(footer, fields.get(_BLOCKS_FIELD))


def _are_stated(places: NDArray[np.void], rows: NDArray[np.void], *, start: int, stop: int) -> bool:
    """Return whether a footer's blocks fill the shard and include all blocks of the manifest.

    A repair leaves damaged blocks out of the manifest, but they stay in the file.
    """
    sizes = places["metadata_bytes"].astype(np.int64) + places["body_bytes"]
    ends = places["offset"] + sizes
    if not np.array_equal([start, *ends], [*places["offset"], stop]):
        return False
    listed = zip(places["offset"].tolist(), sizes.tolist(), strict=True)
    wanted = zip(rows["offset"].tolist(), rows["stored_bytes"].tolist(), strict=True)
    return set(wanted) <= set(listed)


def _header(head: bytes, schema: pa.Schema) -> tuple[int, str | None]:
    """Return where the header ends, and what is wrong with it; it has the footer's schema."""
    if head[: len(_HEAD_MAGIC)] != _HEAD_MAGIC:
        return 0, f"it starts with {head[:8]!r}, expected {_HEAD_MAGIC!r}"
    source = pa.BufferReader(head[len(_HEAD_MAGIC) :])
    found = pa.ipc.read_schema(pa.ipc.read_message(source))
    end = source.tell() + len(_HEAD_MAGIC)
    message = head[len(_HEAD_MAGIC) + _PREFIX_BYTES :]
    fields = _root_fields(message)
    stated = (
        _number(message, fields.get(_VERSION_FIELD), "<h"),
        _number(message, fields.get(_KIND_FIELD), "<B"),
        _number(message, fields.get(_BODY_FIELD), "<q"),
    )
    if stated != (_VERSION, _SCHEMA_KIND, 0) or _METADATA_FIELD in fields:
        return (
            end,
            f"its header has {stated} or metadata, expected {_VERSION}, 1, 0 and none",
        )
    if not found.equals(schema, check_metadata=True):
        return end, "the schema in its header differs from its footer's"
    return end, None


def _root_fields(table: bytes) -> dict[int, int]:
    """Return the places of the root table's fields, by number."""
    root = cast("int", struct.unpack_from("<I", table)[0])
    directory = root - cast("int", struct.unpack_from("<i", table, root)[0])
    if not 0 <= directory < len(table):
        raise ValueError(f"its table of fields is at byte {directory} of {len(table)}")
    count = (struct.unpack_from("<H", table, directory)[0] - 4) // 2
    offsets = struct.unpack_from(f"<{count}H", table, directory + 4)
    return {field: root + offset for field, offset in enumerate(offsets) if offset}


def _number(table: bytes, place: int | None, kind: str) -> int:
    return 0 if place is None else cast("int", struct.unpack_from(kind, table, place)[0])


def _vector(table: bytes, place: int | None) -> NDArray[np.void]:
    if place is None:
        return np.empty(0, _BLOCK)
    start = place + cast("int", struct.unpack_from("<I", table, place)[0])
    count = cast("int", struct.unpack_from("<I", table, start)[0])
    return np.frombuffer(table, _BLOCK, count, start + 4)
