"""Folders of images, one folder a label, as pieces."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pyarrow as pa

from headrace.errors import BadArgumentError
from headrace.storage import DEFAULT_BLOCK_BYTES, FORMAT_KEY, Store, StoreOptions, open_store

IMAGE_FORMATS = {
    ".bmp": "bmp",
    ".gif": "gif",
    ".jpeg": "jpeg",
    ".jpg": "jpeg",
    ".png": "png",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".webp": "webp",
}
"""Formats by what names end with, in small letters."""

_COMPRESSED = {"gif", "jpeg", "png", "webp"}  # of what LZ4 would make no less
_PIECE_BYTES = 64 << 20
_PIECE_FILES = 4096
_READERS = 8  # a store answers in some 20 ms, and files are small
_BATCH_BYTES = DEFAULT_BLOCK_BYTES  # so that a batch is a block, and is not copied to be one


@dataclass(frozen=True, slots=True)
class ImagePieces:
    """Images with the columns ``image`` (the file's bytes) and ``label`` (its folder's name).

    Attributes:
        url: Of the outermost folder.
        names: Of the files of each piece.
        schema: Of the batches; it notes the format where all files have one.
        is_compressed: Whether the formats of all files are.
        options: How to reach them.
    """

    url: str
    names: tuple[tuple[str, ...], ...]
    schema: pa.Schema
    is_compressed: bool
    options: StoreOptions = field(repr=False)

    @property
    def count(self) -> int:
        return len(self.names)

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        with contextlib.closing(open_store(self.url, options=self.options)) as store:
            images: list[bytes] = []
            labels: list[str] = []
            size = 0
            for name, image in zip(self.names[piece], self._contents(store, piece), strict=True):
                label = PurePosixPath(name).parent.name
                sample_bytes = len(image) + len(label.encode())
                if images and size + sample_bytes > _BATCH_BYTES:
                    yield self._batch(images, labels)
                    images, labels, size = [], [], 0
                images.append(image)
                labels.append(label)
                size += sample_bytes
            if images:
                yield self._batch(images, labels)

    def _contents(self, store: Store, piece: int) -> Iterator[bytes]:
        names = self.names[piece]
        if "://" not in store.url:  # of a disk, threads cost more than they hide
            yield from map(store.read, names)
            return
        with ThreadPoolExecutor(_READERS, thread_name_prefix="headrace-images") as pool:
            coming: deque[Future[bytes]] = deque()
            for name in names:
                coming.append(pool.submit(store.read, name))
                if len(coming) > _READERS:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def _batch(self, images: list[bytes], labels: list[str]) -> pa.RecordBatch:
        return pa.record_batch({"image": images, "label": labels}, schema=self.schema)


def image_pieces(url: str, *, options: StoreOptions) -> ImagePieces:
    """Describe the images below a URL, in the order of their paths; reads names and sizes.

    Raises:
        BadArgumentError: There is none.
    """
    with contextlib.closing(open_store(url, options=options)) as store:
        found = sorted(
            (entry.name, entry.stored_bytes)
            for entry in store.list_entries()
            if _format_of(entry.name)
        )
    if not found:
        raise BadArgumentError(
            f"there is no image below {url}; wanted names that end with "
            f"{', '.join(sorted(IMAGE_FORMATS))}",
            field="SRC",
        )
    formats = {_format_of(name) for name, _ in found}
    metadata = {FORMAT_KEY: str(*formats).encode()} if len(formats) == 1 else None
    image = pa.field("image", pa.binary(), metadata=metadata)
    label = pa.field("label", pa.string())
    schema = pa.schema((image, label))
    return ImagePieces(url, _cut(found), schema, formats <= _COMPRESSED, options)


def _format_of(name: str) -> str | None:
    return IMAGE_FORMATS.get(PurePosixPath(name).suffix.lower())


def _cut(files: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], ...]:
    pieces: list[list[str]] = [[]]
    size = 0
    for name, stored_bytes in files:
        if pieces[-1] and (size + stored_bytes > _PIECE_BYTES or len(pieces[-1]) == _PIECE_FILES):
            pieces.append([])
            size = 0
        pieces[-1].append(name)
        size += stored_bytes
    return tuple(map(tuple, pieces))
