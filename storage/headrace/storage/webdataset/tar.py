"""Find the members of a tar file by reading its headers and skipping over its contents.

Memory is limited to one window, whatever the file contains or claims. Headers are checked: their
checksum, and that members end within the file.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual,
"Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, cast

from headrace.errors import ConfigurationError, ShardCorruptError
from headrace.storage.store.store import ObjectEntry, Store

BLOCK = 512
_FIRST_WINDOW = 64 << 10
_LARGEST_WINDOW = 4 << 20
_MAX_NAME_HEADER = 1 << 20  # of pax records or a long name; names have at most a few kB
_REGULAR = (b"0", b"\0", b"7")
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK, _SPARSE = b"x", b"g", b"L", b"K", b"S"
_PAX_SOLARIS = b"X"
_HARD_LINK, _SYMBOLIC_LINK = b"1", b"2"
_FOLDER_DUMP, _VOLUME_NAME = b"D", b"V"
_NOT_NEGATIVE = bytes(range(128))  # as signed bytes
_WITHOUT_CONTENT = (b"2", b"3", b"4", b"5", b"6")  # symbolic links, devices, folders, pipes

_Stated: TypeAlias = tuple[bytes | None, int | None]
"""The name and the size that headers before a member state, if any."""


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in a tar file.

    Attributes:
        name: Its name as stored.
        offset: The first byte of its content in the tar file.
        size: The size of its content in bytes.
        problem: Why its content is not here, such as for a link, or `None`.
    """

    name: str
    offset: int
    size: int
    problem: str | None = None


def members_of(files: Store, entry: ObjectEntry) -> Generator[Member, None, int]:
    """Yield the regular files in a tar file, in order; folders and devices are left out.

    Links and parts of files are yielded with what is wrong with them, since the caller knows which
    names matter.

    Returns:
        The offset of the end of the archive.

    Raises:
        ShardCorruptError: It is not a tar file, is cut off, or contradicts itself; names the byte.
        ConfigurationError: A member is sparse.
    """
    window = _Window(files, entry)
    offset, notes = 0, _Notes()
    while offset < entry.stored_bytes:
        header = window.read(offset, BLOCK)
        if not any(header):
            break
        kind, stated = header[156:157], _checked_size(header, entry, offset)
        start = offset + BLOCK
        if kind in (_PAX, _PAX_SOLARIS, _LONG_NAME, _LONG_LINK, _PAX_GLOBAL):
            _check_end(entry, offset, start + stated)
            records = _name_header(window, start, stated, entry)
            notes.add(kind, records, entry, offset)
            offset = start + _padded(stated)
            continue
        if kind == _SPARSE:
            raise _sparse(entry, offset)
        name, size = notes.take()
        stated = stated if size is None else size
        is_link = kind == _SYMBOLIC_LINK or (kind == _HARD_LINK and _has_none(window, start, entry))
        if kind in _WITHOUT_CONTENT or is_link:
            stated = 0
        _check_end(entry, offset, start + stated)
        problem = _problem(kind, header, is_link=is_link)
        if problem is not None or kind in _REGULAR or kind == _HARD_LINK:
            text = _text(_short_name(header) if name is None else name, entry, offset)
            yield Member(text, start, stated, problem)
        offset = start + _padded(stated)
    if not offset:
        raise tar_damage(
            entry, "it starts with zeros or is empty, so it is not a tar file", offset=0
        )
    return offset


def _problem(kind: bytes, header: bytes, *, is_link: bool) -> str | None:
    """Return why the content of a member is not where others have it, if it has any."""
    if is_link:
        target = header[157:257].partition(b"\0")[0].decode(errors="replace")
        name, option = (
            ("hard", "--hard-dereference") if kind == _HARD_LINK else ("symbolic", "--dereference")
        )
        return (
            f"is a {name} link to {target!r}, whose content is not repeated; write the file again "
            f"with `tar {option}`"
        )
    if kind in (*_REGULAR, _HARD_LINK, *_WITHOUT_CONTENT, _FOLDER_DUMP, _VOLUME_NAME):
        return None
    return (
        f"has the type {kind.decode('latin-1')!r}, as a part of a file in an archive of several "
        "volumes has; write the files again to one archive"
    )


def first_byte_after_end(files: Store, entry: ObjectEntry) -> int | None:
    """Return the offset of the first non-zero byte after the end of the archive.

    Raises:
        ShardCorruptError: See `members_of`.
        ConfigurationError: See `members_of`.
    """
    offset = _end_of(members_of(files, entry))
    while offset < entry.stored_bytes:
        length = min(_LARGEST_WINDOW, entry.stored_bytes - offset)
        content = files.read_entry(entry, offset=offset, length=length)
        left = content.lstrip(b"\0")
        if left:
            return offset + len(content) - len(left)
        offset += length
    return None


def _end_of(walk: Generator[Member, None, int]) -> int:
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return cast("int", end.value)


def tar_damage(entry: ObjectEntry, found: str, *, offset: int) -> ShardCorruptError:
    """Make the error for an invalid tar file."""
    return ShardCorruptError(
        f"shard {entry.name}, at byte {offset}: {found}; restore the file or write it again",
        shard=entry.name,
        offset=offset,
    )


class _Window:
    """Read forward in a file: near reads share a request, and far ones skip what is between."""

    def __init__(self, files: Store, entry: ObjectEntry) -> None:
        self._files = files
        self._entry = entry
        self._start = 0
        self._content = b""
        self._size = _FIRST_WINDOW

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes ``[offset, offset + length)``."""
        if offset + length > self._entry.stored_bytes:
            raise tar_damage(self._entry, "the file ends within a header", offset=offset)
        at = offset - self._start
        if not 0 <= at <= len(self._content) - length:
            self._fetch(offset, length)
            at = 0
        return self._content[at : at + length]

    def _fetch(self, offset: int, length: int) -> None:
        # Small members are close together, so reading more and more at once saves requests. Large
        # ones are skipped, and a small window is enough for a header.
        is_near = offset <= self._start + len(self._content) + BLOCK
        self._size = min(2 * self._size, _LARGEST_WINDOW) if is_near else _FIRST_WINDOW
        wanted = min(max(self._size, length), self._entry.stored_bytes - offset)
        self._content = self._files.read_entry(self._entry, offset=offset, length=wanted)
        self._start = offset


class _Notes:
    """What extra headers state about the next member, or about all later ones."""

    def __init__(self) -> None:
        self._own: _Stated = (None, None)
        self._of_all: _Stated = (None, None)

    def add(self, kind: bytes, records: bytes, entry: ObjectEntry, offset: int) -> None:
        """Add the content of an extra header."""
        if kind == _PAX_GLOBAL:
            self._of_all = _pax(records, entry, offset, self._of_all)
        elif kind in (_PAX, _PAX_SOLARIS):
            self._own = _pax(records, entry, offset, self._own)
        elif kind == _LONG_NAME:
            self._own = (records.partition(b"\0")[0], self._own[1])

    def take(self) -> _Stated:
        """Return the name and the size of the next member, if stated for it or for all."""
        (name, size), self._own = self._own, (None, None)
        return (
            self._of_all[0] if name is None else name,
            self._of_all[1] if size is None else size,
        )


def _has_none(window: _Window, start: int, entry: ObjectEntry) -> bool:
    """Return whether a hard link has no content: the next header or the end of the archive follows.

    It has content in some pax archives. In others its size is that of the linked file, whose
    content is not repeated.
    """
    if start + BLOCK > entry.stored_bytes:
        return start == entry.stored_bytes
    header = window.read(start, BLOCK)
    try:
        return not any(header) or int(header[148:156].strip(b" \0"), 8) in _checksums(header)
    except ValueError:
        return False


def _checksums(header: bytes) -> tuple[int, int]:
    """Return the checksum of a header, and the one that writers with signed bytes made."""
    summed = header[:148] + b" " * 8 + header[156:]
    unsigned = sum(summed)
    return unsigned, unsigned - 256 * len(summed.translate(None, _NOT_NEGATIVE))


def _checked_size(header: bytes, entry: ObjectEntry, offset: int) -> int:
    stated, found = _number(header[148:156], entry, offset), _checksums(header)
    if stated not in found:
        raise tar_damage(
            entry, f"a header with checksum {found[0]} found, {stated} expected", offset=offset
        )
    return _number(header[124:136], entry, offset)


def _number(field: bytes, entry: ObjectEntry, offset: int) -> int:
    if field[0] == 0x80:  # noqa: PLR2004 - the mark of a binary number, GNU's for large ones
        return int.from_bytes(field[1:], "big")
    text = field.split(b"\0", 1)[0].strip()
    if not all(ord("0") <= digit <= ord("7") for digit in text):
        raise tar_damage(entry, f"a header contains {field!r}, expected a number", offset=offset)
    return int(text or b"0", 8)


def _short_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _name_header(window: _Window, start: int, size: int, entry: ObjectEntry) -> bytes:
    if size > _MAX_NAME_HEADER:
        raise tar_damage(
            entry, f"a name has {size} bytes, at most {_MAX_NAME_HEADER} expected", offset=start
        )
    return window.read(start, size)


def _pax(records: bytes, entry: ObjectEntry, offset: int, before: _Stated) -> _Stated:
    """Return the name and the size from pax records, or the previous ones."""
    name, size = before
    at = 0
    while at < len(records):
        digits, _, _ = records[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = records[at : at + length]
        if not digits or length <= len(digits) + 1 or len(record) < length or record[-1:] != b"\n":
            raise tar_damage(entry, "a pax record has no length", offset=offset)
        key, _, value = record[len(digits) + 1 : -1].partition(b"=")
        if key.startswith(b"GNU.sparse"):
            raise _sparse(entry, offset)
        # An empty value takes back what the headers before it stated.
        if key == b"path":
            name = value or None
        elif key == b"size":
            size = _pax_size(value, entry, offset) if value else None
        at += length
    return name, size


def _pax_size(value: bytes, entry: ObjectEntry, offset: int) -> int:
    if not value.isdigit() or len(value) > 20:  # noqa: PLR2004 - digits of 2**64
        raise tar_damage(entry, f"a member has size {value[:40]!r}", offset=offset)
    return int(value)


def _text(name: bytes, entry: ObjectEntry, offset: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise tar_damage(entry, f"a name is not UTF-8: {name[:100]!r}", offset=offset) from error


def _check_end(entry: ObjectEntry, offset: int, end: int) -> None:
    if end > entry.stored_bytes:
        raise tar_damage(
            entry,
            f"a member ends at byte {end}, but the file has {entry.stored_bytes}",
            offset=offset,
        )


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _sparse(entry: ObjectEntry, offset: int) -> ConfigurationError:
    return ConfigurationError(
        f"shard {entry.name}, at byte {offset}: a member is sparse, which is not supported; write "
        "the file again without --sparse",
        shard=entry.name,
        offset=offset,
    )
