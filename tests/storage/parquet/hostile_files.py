"""Write Parquet files that no honest writer would: a Thrift encoder, and footers full of lies."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

# Types of Thrift's compact protocol.
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_INT64 = 2  # physical type of Parquet
_PLAIN = 0
_REQUIRED = 0


@dataclass(frozen=True, slots=True)
class Lies:
    """What a file of one required int64 column states of itself; by default it is honest.

    Attributes:
        values: What its one page holds.
        file_rows: Rows of the file.
        group_rows: Rows of each row group.
        row_groups: Row groups, all over the same page.
        page_offset: Where the page is said to be.
        chunk_bytes: How long the column chunk is said to be.
        raw_bytes: How long it is said to be before compression.
        page_bytes: How long the page is said to be.
        page_raw_bytes: How long it is said to be before compression.
        depth: Groups around the column.
        name: Of the column.
        codec: Of the column; 0 is none, 1 is Snappy.
        file_encryption: Fields of the footer, by number, that say how the file is encrypted.
        chunk_encryption: The same of the column chunk.
    """

    values: int = 5
    file_rows: int = 5
    group_rows: int = 5
    row_groups: int = 1
    page_offset: int = 4
    chunk_bytes: int | None = None
    raw_bytes: int | None = None
    page_bytes: int | None = None
    page_raw_bytes: int | None = None
    depth: int = 0
    name: bytes = b"n"
    codec: int = 0
    file_encryption: Sequence[int] = ()
    chunk_encryption: Sequence[int] = ()

    def file(self) -> bytes:
        """Return the file."""
        return _file(self)


def honest_but(**lies: int | bytes | Sequence[int]) -> bytes:
    """Return a file that is honest but for ``lies``."""
    return replace(Lies(), **lies).file()  # type: ignore[arg-type] # the tests name attributes


def _file(lies: Lies) -> bytes:
    content = struct.pack(f"<{lies.values}q", *range(lies.values))
    header = _page_header(lies, len(content))
    footer = _footer(lies, len(header) + len(content))
    return b"".join((b"PAR1", header, content, footer, struct.pack("<I", len(footer)), b"PAR1"))


def _page_header(lies: Lies, length: int) -> bytes:
    data_page = _struct({1: (_I32, lies.group_rows), 2: (_I32, _PLAIN), 3: (_I32, 3), 4: (_I32, 3)})
    return _struct(
        {
            1: (_I32, 0),
            2: (_I32, length if lies.page_raw_bytes is None else lies.page_raw_bytes),
            3: (_I32, length if lies.page_bytes is None else lies.page_bytes),
            5: (_STRUCT, data_page),
        }
    )


def _footer(lies: Lies, length: int) -> bytes:
    path = [b"g"] * lies.depth + [lies.name]
    root = _struct({4: (_BINARY, b"root"), 5: (_I32, 1)})
    group = _struct({3: (_I32, _REQUIRED), 4: (_BINARY, b"g"), 5: (_I32, 1)})
    leaf = _struct({1: (_I32, _INT64), 3: (_I32, _REQUIRED), 4: (_BINARY, lies.name)})
    raw_bytes = length if lies.raw_bytes is None else lies.raw_bytes
    chunk = _struct(
        {
            1: (_I32, _INT64),
            2: (_LIST, _list(_I32, [_zigzag(_PLAIN)])),
            3: (_LIST, _list(_BINARY, [_binary(part) for part in path])),
            4: (_I32, lies.codec),
            5: (_I64, lies.group_rows),
            6: (_I64, raw_bytes),
            7: (_I64, length if lies.chunk_bytes is None else lies.chunk_bytes),
            9: (_I64, lies.page_offset),
        }
    )
    stated: dict[int, tuple[int, int | bytes]] = {2: (_I64, 4), 3: (_STRUCT, chunk)}
    column = _struct(stated | _encryption(lies.chunk_encryption))
    row_group = _struct(
        {1: (_LIST, _list(_STRUCT, [column])), 2: (_I64, raw_bytes), 3: (_I64, lies.group_rows)}
    )
    schema = [root, *[group] * lies.depth, leaf]
    fields: dict[int, tuple[int, int | bytes]] = {
        1: (_I32, 1),
        2: (_LIST, _list(_STRUCT, schema)),
        3: (_I64, lies.file_rows),
        4: (_LIST, _list(_STRUCT, [row_group] * lies.row_groups)),
    }
    return _struct(fields | _encryption(lies.file_encryption))


def _encryption(fields: Sequence[int]) -> dict[int, tuple[int, int | bytes]]:
    """Return fields as a footer and a column chunk have them: a union of structs, and bytes."""
    stated: dict[int, tuple[int, int | bytes]] = {
        8: (_STRUCT, bytes([0x1C, 0, 0])),
        9: (_BINARY, b"key"),
    }
    return {number: stated[number] for number in fields}


def _struct(fields: Mapping[int, tuple[int, int | bytes]]) -> bytes:
    parts, last = [], 0
    for number, (kind, value) in fields.items():
        parts.append(bytes([(number - last) << 4 | kind]))
        last = number
        if isinstance(value, int):
            parts.append(_zigzag(value))
        else:
            parts.append(_binary(value) if kind == _BINARY else value)
    return b"".join((*parts, b"\0"))


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    if len(items) < 15:
        return bytes([len(items) << 4 | kind]) + b"".join(items)
    return bytes([0xF0 | kind]) + _varint(len(items)) + b"".join(items)


def _binary(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
