"""Divide the images of a plan into pieces that tasks read."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from headrace.converter.images.intact import problem_of
from headrace.converter.images.layout import FilesLeftOut, FolderPlan, format_by_name
from headrace.errors import BadArgumentError
from headrace.storage import DEFAULT_BLOCK_BYTES, Store, StoreOptions, open_store, with_classes
from headrace.storage.store.os_errors import translated

SPLIT_COLUMN = "split"
"""The column with each image's split, if the folder has splits; it is not stored."""

_COMPRESSED = {"gif", "jpeg", "png", "webp"}  # formats that LZ4 would not make smaller
_PIECE_BYTES = 64 << 20
_PIECE_FILES = 4096
_READERS = 8  # a store answers in about 20 ms, and files are small
_BATCH_BYTES = DEFAULT_BLOCK_BYTES  # arbitrary: enough that a batch costs little beside it

File: TypeAlias = tuple[str, str, int | None]
"""Name, split, number of the class."""


class SkippedFiles:
    """Files that are not complete images, noted from any thread of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[tuple[str, str]] = []

    def add(self, name: str, problem: str) -> None:
        """Note a file that is left out."""
        with self._lock:
            self._found.append((name, problem))

    @property
    def left_out(self) -> tuple[FilesLeftOut, ...]:
        """Return the files noted so far as one entry, if any."""
        with self._lock:
            names = tuple(f"{name} ({problem})" for name, problem in sorted(self._found))
        return (FilesLeftOut("file", "not a complete image", names),) if names else ()


@dataclass(frozen=True, slots=True)
class ImagePieces:
    """Images with the columns ``image`` (the file's bytes) and, if there are classes, ``label``.

    Picklable if ``skipped`` is `None`.

    Attributes:
        url: The URL of the outermost folder.
        files: The files of each piece.
        schema: The schema of the batches.
        is_compressed: Whether all formats, according to names, are compressed.
        raw_bytes: The raw bytes of the files when they were listed.
        options: The options of their store.
        skipped: Notes files that are not complete images; `None` refuses them.
    """

    url: str
    files: tuple[tuple[File, ...], ...]
    schema: pa.Schema
    is_compressed: bool
    raw_bytes: int
    options: StoreOptions = field(repr=False)
    skipped: SkippedFiles | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """Return the number of pieces."""
        return len(self.files)

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        """Yield the images of one piece.

        Raises:
            BadArgumentError: A file is not a complete image, and such files are not left out.
        """
        with contextlib.closing(open_store(self.url, options=self.options)) as store:
            rows: list[tuple[bytes, File]] = []
            size = 0
            for file, image in zip(self.files[piece], self._contents(store, piece), strict=True):
                if not self._is_whole(file[0], image):
                    continue
                if rows and size + len(image) > _BATCH_BYTES:
                    yield self._batch(rows)
                    rows, size = [], 0
                rows.append((image, file))
                size += len(image) + 8
            if rows:
                yield self._batch(rows)

    def _is_whole(self, name: str, image: bytes) -> bool:
        problem = problem_of(image)
        if problem is None:
            return True
        if self.skipped is None:
            raise BadArgumentError(
                f"{name} in {self.url} is not a complete image: {problem}; restore or remove it, "
                "or leave out all such images with on_error='skip'",
                field="SRC",
            )
        self.skipped.add(name, problem)
        return False

    def _contents(self, store: Store, piece: int) -> Iterator[bytes]:
        names = [name for name, _, _ in self.files[piece]]
        if "://" not in store.url:  # for a disk, threads cost more than they hide
            yield from (_read_file(store.url, name) for name in names)
            return
        with ThreadPoolExecutor(_READERS, thread_name_prefix="headrace-images") as pool:
            coming: deque[Future[bytes]] = deque()
            for name in names:
                coming.append(pool.submit(store.read, name))
                if len(coming) > _READERS:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def _batch(self, rows: Sequence[tuple[bytes, File]]) -> pa.RecordBatch:
        columns: dict[str, list[object]] = {"image": [image for image, _ in rows]}
        if "label" in self.schema.names:
            columns["label"] = [label for _, (_, _, label) in rows]
        if SPLIT_COLUMN in self.schema.names:
            columns[SPLIT_COLUMN] = [split for _, (_, split, _) in rows]
        return pa.record_batch(columns, schema=self.schema)


def image_pieces(
    url: str, plan: FolderPlan, *, options: StoreOptions, skipped: SkippedFiles | None = None
) -> list[ImagePieces]:
    """Cut the images of a folder into pieces of about 64 MiB, in the order of their names.

    Returns:
        One object for all splits with labels and one for all without, if there are any, since its
        datasets have the same columns.
    """
    made = []
    for has_labels in (True, False):
        parts = {
            split: files
            for split, files in plan.splits.items()
            if files and (files[0][2] is not None) == has_labels
        }
        if parts:
            made.append(
                ImagePieces(
                    url,
                    _cut(parts),
                    _schema(plan.classes if has_labels else (), has_splits="" not in parts),
                    {format_by_name(f[0]) for files in parts.values() for f in files}
                    <= _COMPRESSED,
                    sum(size for files in parts.values() for _, size, _ in files),
                    options,
                    skipped,
                )
            )
    return made


def _schema(classes: Sequence[str], *, has_splits: bool) -> pa.Schema:
    # The format is detected from the bytes, since a name may be wrong.
    fields: list[pa.Field[pa.DataType]] = [pa.field("image", pa.binary())]
    if classes:
        fields.append(with_classes(pa.field("label", pa.int64()), classes))
    if has_splits:
        fields.append(pa.field(SPLIT_COLUMN, pa.string()))
    return pa.schema(fields)


def _cut(parts: dict[str, Sequence[tuple[str, int, int | None]]]) -> tuple[tuple[File, ...], ...]:
    pieces: list[list[File]] = [[]]
    size = 0
    for split, files in parts.items():
        for name, stored_bytes, label in files:
            is_full = size + stored_bytes > _PIECE_BYTES or len(pieces[-1]) == _PIECE_FILES
            if pieces[-1] and (is_full or pieces[-1][-1][1] != split):
                pieces.append([])
                size = 0
            pieces[-1].append((name, split, label))
            size += stored_bytes
    return tuple(map(tuple, pieces))


def _read_file(folder: str, name: str) -> bytes:
    """Read a file of this machine, also behind a link that leads out: the user named the folder."""
    with translated(name, folder, advice="check owner and mode"):
        return Path(folder, name).read_bytes()
