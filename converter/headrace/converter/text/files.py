"""Find text files anywhere, decompress them, and decode them to UTF-8 without loss."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from headrace.converter.samples.splits import SPLIT_NAMES
from headrace.converter.text.options import TextKind
from headrace.errors import BadArgumentError
from headrace.storage import Store, StoreOptions, open_store
from headrace.storage.source.other_kinds import has_object

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore] # since 3.12

STEP_BYTES = 4 << 20
"""Bytes of a read, and roughly of a chunk."""

_BOM = codecs.BOM_UTF8
_WIDE_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SUFFIXES: Mapping[TextKind, tuple[str, ...]] = {
    "csv": (".csv", ".tsv", ".tab"),
    "json": (".json", ".jsonl", ".ndjson"),
    "text": (".txt", ".text"),
}
_PACKED = (".bz2", ".gz", ".zst")


@dataclass(frozen=True, slots=True)
class TextFile:
    """One file. Picklable.

    Attributes:
        url: The URL of its folder or bucket.
        name: Its name in the folder.
        encoding: The encoding of its text.
        options: The options of its store.
        step_bytes: Bytes of a read: large for a store, small compared with memory.
        stored_bytes: Its stored size when it was found; 0 if unknown.
    """

    url: str
    name: str
    encoding: str
    options: StoreOptions = field(repr=False)
    step_bytes: int = STEP_BYTES
    stored_bytes: int = 0

    @property
    def is_plain(self) -> bool:
        """Return whether a part can be read on its own: the file is UTF-8, and not compressed."""
        return not self.name.lower().endswith(_PACKED) and _is_utf8(self.encoding)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the text as UTF-8 without a byte-order mark, a few MiB at a time.

        Undecodable bytes stay, or become, invalid UTF-8.

        Args:
            start: The first byte to yield.
            stop: The end of the bytes to yield; `None` is the end of the file.

        Raises:
            BadArgumentError: The compressed file is damaged, or the text has another encoding.
        """
        with contextlib.closing(open_store(self.url, options=self.options)) as store:
            if self.is_plain:
                yield from self._plain(store, start, stop)
            else:
                yield from _within(self._decoded(store), start, stop)

    def _plain(self, store: Store, start: int, stop: int | None) -> Iterator[bytes]:
        head = store.read(self.name, offset=0, length=4)
        _refuse_wide(head, self.name)
        skipped = len(_BOM) if head.startswith(_BOM) else 0
        at, end = start + skipped, None if stop is None else stop + skipped
        while end is None or at < end:
            length = self.step_bytes if end is None else min(self.step_bytes, end - at)
            part = store.read(self.name, offset=at, length=length)
            if not part:
                return
            yield part
            at += len(part)

    def _decoded(self, store: Store) -> Iterator[bytes]:
        parts = _unpacked(store, self.name, self.step_bytes)
        if not _is_utf8(self.encoding):
            parts = _transcoded(parts, self.encoding)
        first = b""
        for part in parts:
            first += part
            if len(first) >= len(_BOM):
                break
        _refuse_wide(first, self.name)
        yield first.removeprefix(_BOM)
        yield from parts


def find_files(
    source: str,
    kind: TextKind,
    *,
    encoding: str,
    options: StoreOptions,
    step_bytes: int = STEP_BYTES,
) -> tuple[list[TextFile], list[str]]:
    """Return the files at a path or URL in the order of their names, and the names of other files.

    In a folder, files with the suffixes of the kind are taken, or all files if there are none.
    Hidden files, whose names start with ``.`` or ``_``, are ignored.

    Raises:
        BadArgumentError: There are no files.
    """
    single = _single(source, kind, options)
    if single is not None:
        folder, name, stored = single
        return [TextFile(folder, name, encoding, options, step_bytes, stored)], []
    with contextlib.closing(open_store(source, options=options)) as store:
        entries = (entry for entry in store.list_entries() if not _is_hidden(entry.name))
        sizes = {entry.name: entry.stored_bytes for entry in entries}
        names = sorted(sizes)
        # Spark tasks may have another working directory.
        folder = source if "://" in store.url else store.url
    chosen = [name for name in names if _is_of(name, kind)] or names
    if not chosen:
        raise BadArgumentError(
            f"{source} does not exist, or is empty; expected a file or folder of {kind}",
            field="SRC",
        )
    others = sorted(set(names) - set(chosen))
    return [
        TextFile(folder, name, encoding, options, step_bytes, sizes[name]) for name in chosen
    ], others


def refuse_lost_partitions(files: Sequence[TextFile], columns: Sequence[str]) -> None:
    """Refuse folders whose names hold values that no column has, such as ``year=2024/x.csv``.

    Raises:
        BadArgumentError: There is such a file.
    """
    for file in files:
        for part in PurePosixPath(file.name).parts[:-1]:
            name, mark, _ = part.partition("=")
            if mark and name and name not in columns:
                raise BadArgumentError(
                    f"{file.name} is in the folder {part!r}, whose {name!r} is not in a column and "
                    "would be lost; convert each such folder into its own dataset, or read the "
                    "partitions with Spark and write them with write_shards",
                    field="SRC",
                )


def merged_splits(files: Sequence[TextFile]) -> list[str]:
    """Return the folders with names of splits, if there are several."""
    folders = {PurePosixPath(file.name).parts[0] for file in files if "/" in file.name}
    found = sorted(folder for folder in folders if folder.lower() in SPLIT_NAMES)
    return found if len(found) > 1 else []


def _single(source: str, kind: TextKind, options: StoreOptions) -> tuple[str, str, int] | None:
    with contextlib.closing(open_store(source, options=options)) as store:
        path = Path(store.url)
        if "://" not in store.url:
            if not path.is_file():
                return None
            return str(path.parent), path.name, path.stat().st_size
    folder, _, name = source.rstrip("/").rpartition("/")
    if folder.endswith("/") or not _is_of(name, kind):
        return None
    # Spark writes folders with names like those of files.
    with contextlib.closing(open_store(folder, options=options)) as store:
        return (folder, name, 0) if has_object(store, name) else None


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _is_of(name: str, kind: TextKind) -> bool:
    path = PurePosixPath(name.lower())
    return (path.with_suffix("") if path.suffix in _PACKED else path).suffix in _SUFFIXES[kind]


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in {"utf-8", "utf-8-sig"}


def _within(parts: Iterator[bytes], start: int, stop: int | None) -> Iterator[bytes]:
    at = 0
    for part in parts:
        wanted = part[max(0, start - at) : None if stop is None else max(0, stop - at)]
        at += len(part)
        if wanted:
            yield wanted
        if stop is not None and at >= stop:
            return


def _refuse_wide(head: bytes, name: str) -> None:
    for mark, encoding in _WIDE_BOMS.items():
        if head.startswith(mark):
            raise BadArgumentError(
                f"{name}:1: the file starts with the byte order mark of {encoding}; give "
                f"--encoding {encoding}",
                field="encoding",
            )


class _Raw(io.RawIOBase):
    """An object of a store, read from its start to its end."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        part = self._store.read(self._name, offset=self._at, length=len(view))
        view[: len(part)] = part
        self._at += len(part)
        return len(part)


class _Bzip2:
    """A bzip2 file of any number of streams; Python's module ignores what follows a bad stream."""

    def __init__(self, raw: io.BufferedReader) -> None:
        self._raw = raw
        self._decompressor = bz2.BZ2Decompressor()
        self._is_inside = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end.

        Raises:
            OSError: The file is damaged.
            EOFError: The file ends within a stream.
        """
        while True:
            if self._decompressor.eof:
                left, self._decompressor = self._decompressor.unused_data, bz2.BZ2Decompressor()
                self._is_inside = False
            else:
                left = b""
            if not left and self._decompressor.needs_input:
                left = self._raw.read(size)
                if not left and not self._is_inside:
                    return b""
                if not left:
                    raise EOFError("the file ends inside a stream")
            self._is_inside = True
            part = self._decompressor.decompress(left, size)
            if part:
                return part


def _unpacked(store: Store, name: str, step_bytes: int) -> Iterator[bytes]:
    raw = io.BufferedReader(_Raw(store, name), step_bytes)
    suffix = PurePosixPath(name.lower()).suffix
    try:
        with _opened(raw, suffix) as file:
            while part := file.read(step_bytes):
                yield part
    except (EOFError, OSError, zlib.error, pa.ArrowException) as error:
        raise BadArgumentError(
            f"{name} is damaged as a {suffix.lstrip('.')} file: {error}", field="SRC"
        ) from error


def _opened(raw: Any, suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if suffix == ".bz2":
        return _Bzip2(raw)
    if suffix == ".zst":
        return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    return raw


def _transcoded(parts: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(_MARKS)
    for part in parts:
        yield decoder.decode(part).encode(errors="surrogatepass")
    yield decoder.decode(b"", final=True).encode(errors="surrogatepass")


_MARKS = "headrace.undecodable"


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Return surrogates for undecodable bytes, so that their record can be named."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(chr(0xDC00 + byte) for byte in found), error.end


codecs.register_error(_MARKS, _mark)


def undecodable(content: bytes) -> str | None:
    """Return the first bytes that are not UTF-8, as hexadecimal digits; None if there are none."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        found = content[error.start : max(error.end, error.start + 1)]
        marked = re.match(rb"\xed[\xb0-\xb3][\x80-\xbf]", content[error.start :])
        if marked:
            return f"{ord(marked[0].decode(errors='surrogatepass')) - 0xDC00:02x}"
        return found.hex()
    return None
