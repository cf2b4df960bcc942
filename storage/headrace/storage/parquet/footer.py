"""Find, fetch and parse the footer of a Parquet file, with limits on what it may claim."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import ConfigurationError, ShardCorruptError, UnsupportedColumnError
from headrace.storage.parquet.thrift import EncryptionFoundError, chunk_fields
from headrace.storage.store.store import ObjectEntry, Store

MAX_FOOTER_BYTES = 256 << 20
"""Arbitrary: 10,000 columns in 100 row groups have 100 MB."""

DIGEST_BYTES = 16
_GUESS_BYTES = 64 << 10  # footers of 50 columns and 30 row groups are fetched with the first read
_TAIL = struct.Struct("<I4s")  # length of the footer, magic
_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_BYTE_ARRAY = 6
_TYPES = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "INT96": 3,
    "FLOAT": 4,
    "DOUBLE": 5,
    "BYTE_ARRAY": _BYTE_ARRAY,
    "FIXED_LEN_BYTE_ARRAY": 7,
}
_MAX_STRING_BYTES = 64 << 20  # the Arrow schema of very wide files is one string
_MAX_ITEMS = 4_000_000  # in one list of the footer, such as the column chunks of a row group


@dataclass(frozen=True, slots=True)
class Footer:
    """A footer in stored form.

    Attributes:
        entry: Its file.
        content: The Thrift message, without its length and the magic.
    """

    entry: ObjectEntry
    content: bytes

    @property
    def digest(self) -> bytes:
        """Return BLAKE2b-128 of the content."""
        return hashlib.blake2b(self.content, digest_size=DIGEST_BYTES).digest()

    @property
    def offset(self) -> int:
        """Return the offset of its first byte in the file."""
        return self.entry.stored_bytes - _TAIL.size - len(self.content)

    def file(self) -> pq.ParquetFile:
        """Parse the footer; the result cannot read other parts of the file.

        Raises:
            ShardCorruptError: It cannot be parsed, or its column chunks contradict its schema.
            ConfigurationError: Columns of the file are encrypted.
            UnsupportedColumnError: A column has a type that Arrow does not read.
        """
        tail = _TAIL.pack(len(self.content), _MAGIC)
        source = pa.BufferReader(b"".join((_MAGIC, self.content, tail)))
        try:
            file = pq.ParquetFile(
                source,
                thrift_string_size_limit=_MAX_STRING_BYTES,
                thrift_container_size_limit=_MAX_ITEMS,
                coerce_int96_timestamp_unit="us",
            )
            _check_chunks(self.content, file.metadata)
        except pa.ArrowNotImplementedError as error:
            raise UnsupportedColumnError(
                f"file {self.entry.name} has a column of a type that is not supported: {error}; "
                "write that column with another type",
                shard=self.entry.name,
            ) from error
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise self.damage(f"its footer cannot be read: {error}") from error
        except EncryptionFoundError as error:
            raise _encrypted(self.entry) from error
        except (IndexError, RecursionError) as error:
            raise self.damage("its footer is nested too deeply or cut off") from error
        return file

    def damage(self, found: str) -> ShardCorruptError:
        """Return the error for an invalid footer."""
        return damage(self.entry, found, offset=max(0, self.offset))


def _check_chunks(content: bytes, metadata: pq.FileMetaData) -> None:
    """Refuse footers whose column chunks would crash the process on access (see `thrift`)."""
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    wanted = [
        (
            _TYPES.get(column.physical_type),
            {0, column.max_repetition_level + 1},
            {0, column.max_definition_level + 1},
        )
        for column in columns
    ]
    for group, chunks in enumerate(chunk_fields(content)):
        for index, (chunk, (kind, repetitions, definitions)) in enumerate(
            zip(chunks, wanted, strict=True)
        ):
            if (
                chunk.physical_type != kind
                or chunk.repetition_levels not in repetitions
                or chunk.definition_levels not in definitions
                or (chunk.text_bytes and kind != _BYTE_ARRAY)
            ):
                raise ValueError(
                    f"column {columns[index].path!r} of row group {group} has {chunk}, which "
                    "contradicts the schema"
                )


def damage(entry: ObjectEntry, found: str, *, offset: int) -> ShardCorruptError:
    """Return the error for an invalid file."""
    return ShardCorruptError(
        f"file {entry.name}, at byte {offset}: {found}; restore the file or write it again",
        shard=entry.name,
        offset=offset,
    )


def read_footer(files: Store, entry: ObjectEntry) -> Footer:
    """Fetch the footer of a file: one read, or two if it is long.

    Raises:
        ShardCorruptError: The file is not a Parquet file, is cut off, or its footer is too long.
        ConfigurationError: It is encrypted.
    """
    size = entry.stored_bytes
    if size < _TAIL.size + len(_MAGIC):
        raise damage(entry, f"it has {size} bytes, too few for a Parquet file", offset=0)
    guessed = min(size, _GUESS_BYTES)
    tail = files.read_entry(entry, offset=size - guessed, length=guessed)
    length = footer_length(tail[-_TAIL.size :], entry)
    stop = len(tail) - _TAIL.size
    if length <= stop:
        return Footer(entry, tail[stop - length : stop])
    missing = length - stop
    head = files.read_entry(entry, offset=size - guessed - missing, length=missing)
    return Footer(entry, head + tail[:stop])


def read_known_footer(files: Store, entry: ObjectEntry, *, length: int, digest: bytes) -> Footer:
    """Fetch a footer with known length and digest.

    Raises:
        ShardCorruptError: It has changed since it was indexed.
    """
    start = entry.stored_bytes - _TAIL.size - length
    footer = Footer(entry, files.read_entry(entry, offset=start, length=length))
    if footer.digest != digest:
        raise footer.damage(
            f"its footer has digest {footer.digest.hex()}, expected {digest.hex()} as in the index"
        )
    return footer


def footer_length(tail: bytes, entry: ObjectEntry) -> int:
    """Return the length of the footer from the last 8 bytes of a file.

    Raises:
        ShardCorruptError: They are not those of a Parquet file, or the length is impossible.
        ConfigurationError: The file is encrypted.
    """
    length, magic = _TAIL.unpack(tail)
    place = entry.stored_bytes - _TAIL.size
    if magic == _ENCRYPTED:
        raise _encrypted(entry)
    if magic != _MAGIC:
        raise damage(
            entry, f"it ends with {magic!r}, but a Parquet file ends with {_MAGIC!r}", offset=place
        )
    if not 0 < length <= min(MAX_FOOTER_BYTES, place - len(_MAGIC)):
        raise damage(
            entry,
            f"its footer should have {length} bytes, but the file has {entry.stored_bytes}, and a "
            f"footer at most {MAX_FOOTER_BYTES}",
            offset=place,
        )
    return int(length)


def _encrypted(entry: ObjectEntry) -> ConfigurationError:
    return ConfigurationError(
        f"file {entry.name} is encrypted, which is not supported; write it without encryption",
        shard=entry.name,
    )
