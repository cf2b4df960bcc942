"""Read the column chunks of a footer before Arrow does.

Arrow parses a footer without checking its column chunks, and throws on the first access to one that
contradicts the schema, which ends the process under pyarrow. So the few fields that Arrow compares
are compared here first. Everything else is skipped.

Source: parquet.thrift of the Parquet format, version 2.12, and the Thrift compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_STOP, _TRUE, _FALSE, _BYTE = 0, 1, 2, 3
_DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
_LONG_LIST = 15  # a list of at least this length has its length after the header
_MAX_VARINT_SHIFT = 70
_PAGE_CHECKSUM = 4  # of PageHeader
_FILE_ENCRYPTION = (8, 9)  # of FileMetaData: the algorithm, and the key that signs the footer
_CHUNK_ENCRYPTION = (8, 9)  # of ColumnChunk: the key, and the metadata in encrypted form


class EncryptionFoundError(Exception):
    """The footer can be read, but columns of the file are encrypted."""


@dataclass(frozen=True, slots=True)
class ChunkFields:
    """The checked fields of one column chunk.

    Attributes:
        physical_type: The number of the type, or `None` if the chunk has no metadata.
        text_bytes: Whether it says how long its text is.
        repetition_levels: The length of the histogram of repetition levels, 0 without one.
        definition_levels: The same for definition levels.
    """

    physical_type: int | None = None
    text_bytes: bool = False
    repetition_levels: int = 0
    definition_levels: int = 0


def chunk_fields(footer: bytes) -> Iterator[list[ChunkFields]]:
    """Yield the fields of the column chunks of each row group.

    Args:
        footer: A Thrift message that Arrow could parse.

    Raises:
        ValueError: It is not a message, or nested too deeply.
        IndexError: It is cut off.
        EncryptionFoundError: It says that something in the file is encrypted.
    """
    reader = _Reader(footer)
    for field, kind in reader.fields():
        if field in _FILE_ENCRYPTION:
            raise EncryptionFoundError
        if (field, kind) == (4, _LIST):
            for _ in reader.items(_STRUCT):
                yield _row_group(reader)
        else:
            reader.skip(kind)


def has_checksum(header: bytes) -> bool:
    """Return whether a page has a checksum.

    Args:
        header: The first bytes of the page, its own header.
    """
    try:
        for field, kind in _Reader(header).fields_with_values():
            if field >= _PAGE_CHECKSUM:
                return field == _PAGE_CHECKSUM and kind in _INTEGERS
    except (ValueError, IndexError, RecursionError):
        pass  # damage, which reading the page reports
    return False


def _row_group(reader: _Reader) -> list[ChunkFields]:
    found = []
    for field, kind in reader.fields():
        if (field, kind) == (1, _LIST):
            found = [_chunk(reader) for _ in reader.items(_STRUCT)]
        else:
            reader.skip(kind)
    return found


def _chunk(reader: _Reader) -> ChunkFields:
    found = ChunkFields()
    for field, kind in reader.fields():
        if field in _CHUNK_ENCRYPTION:
            raise EncryptionFoundError
        if (field, kind) == (3, _STRUCT):
            found = _chunk_metadata(reader)
        else:
            reader.skip(kind)
    return found


def _chunk_metadata(reader: _Reader) -> ChunkFields:
    physical_type = None
    sizes = (False, 0, 0)
    for field, kind in reader.fields():
        if field == 1 and kind in _INTEGERS:
            physical_type = reader.integer()
        elif (field, kind) == (3, _LIST):
            reader.check_texts()
        elif (field, kind) == (16, _STRUCT):
            sizes = _size_statistics(reader)
        else:
            reader.skip(kind)
    return ChunkFields(physical_type, *sizes)


def _size_statistics(reader: _Reader) -> tuple[bool, int, int]:
    text_bytes = False
    lengths = {2: 0, 3: 0}
    for field, kind in reader.fields():
        if field in lengths and kind == _LIST:
            lengths[field] = reader.skip_list()
        else:
            text_bytes |= field == 1 and kind in _INTEGERS
            reader.skip(kind)
    return text_bytes, lengths[2], lengths[3]


class _Reader:
    """A cursor over a message; running off its end raises `IndexError`."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and kind of each field of a struct; the caller must read its value."""
        number = 0
        while True:
            header = self._byte()
            if header == _STOP:
                return
            number = number + (header >> 4) if header >> 4 else self.integer()
            yield number, header & 15

    def fields_with_values(self) -> Iterator[tuple[int, int]]:
        """Yield the number and kind of each field of a struct, and skip its value."""
        for number, kind in self.fields():
            yield number, kind
            self.skip(kind)

    def items(self, wanted: int) -> Iterator[int]:
        """Yield the places in a list of the expected kind."""
        count, kind = self._list_header()
        if kind != wanted and count:
            raise ValueError(f"a list of kind {kind} at byte {self._at}, {wanted} expected")
        yield from range(count)

    def integer(self) -> int:
        """Return a signed integer."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, kind: int) -> None:
        """Skip a value."""
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            length = self._varint()
            self._advance(length)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind in (_LIST, _SET):
            self.skip_list()
        elif kind in (_BYTE, _DOUBLE):
            self._advance(1 if kind == _BYTE else 8)
        elif kind == _MAP:
            self._skip_map()
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"kind {kind} at byte {self._at}")

    def skip_list(self) -> int:
        """Skip a list and return its length."""
        count, kind = self._list_header()
        if kind in (_TRUE, _FALSE, _BYTE):
            self._advance(count)
        else:
            for _ in range(count):
                self.skip(kind)
        return count

    def check_texts(self) -> None:
        """Skip a list of texts, which pyarrow decodes outside of its error handling."""
        for _ in self.items(_BINARY):
            length = self._varint()
            start = self._at
            self._advance(length)
            self._content[start : self._at].decode()

    def _skip_map(self) -> None:
        count = self._varint()
        kinds = self._byte() if count else 0
        # A boolean in a container has a byte of its own, so no count is larger than the message.
        key, value = (_BYTE if one in (_TRUE, _FALSE) else one for one in (kinds >> 4, kinds & 15))
        for _ in range(count):
            self.skip(key)
            self.skip(value)

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        count = header >> 4
        return (self._varint() if count == _LONG_LIST else count), header & 15

    def _varint(self) -> int:
        content, at = self._content, self._at
        byte = content[at]
        value, shift = byte & 127, 7
        while byte > 127:  # noqa: PLR2004 - the bit that says that more follow
            at += 1
            byte = content[at]
            value |= (byte & 127) << shift
            shift += 7
            if shift > _MAX_VARINT_SHIFT:
                raise ValueError(f"an integer without an end at byte {at}")
        self._at = at + 1
        return value

    def _byte(self) -> int:
        byte = self._content[self._at]
        self._at += 1
        return byte

    def _advance(self, count: int) -> None:
        self._at += count
        if self._at > len(self._content):
            raise IndexError(self._at)
