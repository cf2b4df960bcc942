"""The stage that decodes image files and applies transforms to them, on all processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from struct import error as struct_error

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StageFailedError
from headrace.payload import BFLOAT16
from headrace.server.batch.batch_values import Batch, Later, Values, make_now, unmade
from headrace.server.batch.row_pool import Waits, Workers
from headrace.server.batch.stage import (
    Columns,
    Context,
    Replacement,
    Running,
    Stage,
    tensor_of,
    wanted_column,
)
from headrace.server.layout.wire_columns import DTYPES, WireColumn
from headrace.server.stages.images.files import (
    Decoder,
    Head,
    head_of,
    reduction_of,
    upright_size,
)
from headrace.server.stages.images.follow_image import Followers, followers_of
from headrace.server.stages.images.frame import Frame
from headrace.server.stages.images.image_work import check_work, decode_work
from headrace.server.stages.images.pixel_cache import PixelCache
from headrace.server.stages.images.recipe import ImageDraws, recipe_of
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb

# Heads that a thread reads in one go: less than a millisecond, as much as decoding one image takes.
_HEADS = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Images:
    """The images of a batch before they are made.

    Attributes:
        files: The file of each row; null rows have none.
        heads: The heads of the files, by row.
        draws: The random draws of the batch.
        damaged: Rows whose files cannot be decoded, if that is not an error.
    """

    files: Mapping[int, memoryview]
    heads: Mapping[int, Head]
    draws: ImageDraws
    damaged: list[int]


class AugmentImage(Stage):
    """Turn a column of image files into a tensor.

    Args:
        message: The stage as requested.
        place: Its place in the request.
        pixels: Decoded images that are kept; None if none are.
    """

    def __init__(
        self, message: images_pb.DecodeImage, place: int, pixels: PixelCache | None = None
    ) -> None:
        self._may_skip = message.on_error == images_pb.ON_ERROR_SKIP
        self._name = message.column
        self._place = place
        self._kept = pixels
        self._recipe = recipe_of(message)
        self._decoder = Decoder(self._recipe.channels)
        height, width = self._recipe.height, self._recipe.width
        self._followers = followers_of(message, height=height, width=width)

    @property
    def replacement(self) -> Replacement | None:
        """How samples with damaged files are replaced; None if they are errors."""
        if not self._may_skip:
            return None
        return Replacement(
            self._name,
            "the image of sample {} cannot be decoded",
            "list damaged samples in skips, or convert the images again",
        )

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        column = wanted_column(before, self._name, "decode_image", (pb.COLUMN_KIND_BYTES,))
        followed = {} if self._followers is None else self._followers.columns(before)
        return {**before, **followed, self._name: self._made(column)}

    def run(self, batch: Batch, context: Context) -> Running[Batch]:
        """Read the headers of a batch's files, and make the columns that follow its images.

        The images themselves are made later, unless damaged ones are to be replaced.
        """
        found = batch.columns[self._name]
        files = _files(found, batch.row_count)
        damaged: list[int] = []
        heads = yield from self._heads(batch, files, damaged, context.workers)
        images = _Images(files, heads, self._recipe.draws(batch.keys, self._place), damaged)
        scratch = max((head.scratch_bytes for head in heads.values()), default=0)
        beside_bytes = context.workers.pool.threads * (scratch + self._recipe.image_bytes)
        later = Later(partial(self._make_all, images), beside_bytes)
        made = replace(unmade(self._made(found.column), batch.row_count, later), valid=found.valid)
        columns = {**batch.columns, self._name: made}
        if self._followers is not None and not damaged:
            beside_bytes += self._followers.cost(batch)
            context.claim(beside_bytes)
            columns |= yield from self._followed(self._followers, batch, images, context.workers)
        if self._may_skip and not damaged:
            context.claim(beside_bytes + made.values.nbytes)
            columns[self._name] = yield from make_now(made, context.workers)
        return replace(batch, columns=columns, damaged=sorted(damaged))

    def _followed(
        self, followers: Followers, batch: Batch, images: _Images, workers: Workers
    ) -> Waits[dict[str, Values]]:
        """Return the masks and boxes of the images."""
        followed = followers.begin(batch)
        rows = list(images.files)

        def follow(at: int) -> None:
            row = rows[at]

            def place() -> tuple[Frame, int, int]:
                height, width = upright_size(images.files[row], images.heads[row])
                return self._recipe.place(height, width, images.draws, row), height, width

            try:
                followers.follow(batch, row, followed, place)
            except _failures() as error:
                self._note(row, error, images.damaged)

        yield from workers.work(len(rows), follow)
        return {} if images.damaged else followers.values(batch, followed)

    def _make_all(
        self, images: _Images, rows: Sequence[NDArray[np.uint8]], workers: Workers
    ) -> Waits[None]:
        shape = self._recipe.shape
        places = list(images.files)
        for row in set(range(len(rows))).difference(places):
            rows[row][:] = 0

        def make(at: int) -> None:
            row = places[at]
            out = rows[row].view(self._dtype).reshape(shape)
            self._make(row, images, out)

        return workers.work(len(places), make)

    @property
    def _dtype(self) -> np.dtype[np.generic]:
        return DTYPES[self._recipe.element_type]

    def _made(self, column: WireColumn) -> WireColumn:
        kind = self._recipe.element_type
        made = tensor_of(column, self._recipe.shape)
        return replace(made, element_type=kind, dtype=self._dtype, logical_type="")

    def _heads(
        self,
        batch: Batch,
        files: dict[int, memoryview],
        damaged: list[int],
        workers: Workers,
    ) -> Waits[dict[int, Head]]:
        """Refuse images that take too much work, before decoding any image of the batch."""
        rows = list(files)
        heads: dict[int, Head] = {}
        works: dict[int, int] = {}

        def read(part: int) -> None:
            for row in rows[part * _HEADS : (part + 1) * _HEADS]:
                try:
                    head = heads[row] = head_of(files[row])
                    works[row] = decode_work(head.width, head.height, files[row])
                    if self._followers is not None:
                        works[row] += self._followers.work(batch, row)
                except _failures() as error:
                    self._note(row, error, damaged)

        yield from workers.work(-(-len(rows) // _HEADS), read)
        total = 0
        for row in rows:
            total += works.get(row, 0)
            try:
                check_work(total)
            except ValueError as error:
                raise self._failure(row, error) from error
        return heads

    def _make(self, row: int, images: _Images, out: NDArray[np.generic]) -> None:
        try:
            pixels = self._pixels(images.files[row], images.heads[row])
        except _failures() as error:
            self._note(row, error, images.damaged)
        else:
            bits = out.view(np.uint16) if out.dtype == BFLOAT16 else out
            self._recipe.make(pixels, images.draws, row, bits)

    def _pixels(self, file: memoryview, head: Head) -> NDArray[np.uint8]:
        kept, reduction = self._kept, self._reduction(file, head)
        if kept is None:
            return self._decoder.pixels(file, head, reduction)
        key = kept.key(file, self._recipe.channels, reduction)
        pixels = kept.get(key)
        if pixels is None:
            pixels = self._decoder.pixels(file, head, reduction)
            kept.put(key, pixels)
        return pixels

    def _reduction(self, file: memoryview, head: Head) -> int:
        """Return by how much an image is reduced while it is decoded."""
        if self._recipe.fitted is None or not head.is_plain:
            return 1
        size = upright_size(file, head)
        return reduction_of(*size, self._recipe.least_size(*size))

    def _note(self, row: int, error: BaseException, damaged: list[int]) -> None:
        """Note a file that cannot be decoded, if that is not an error."""
        if not self._may_skip:
            raise self._failure(row, error) from error
        damaged.append(row)

    def _failure(self, row: int, error: BaseException) -> StageFailedError:
        # Pillow names the object that holds the bytes.
        why = str(error).partition(" <")[0][:200]
        return StageFailedError(
            f"decode_image: row {row} of column {self._name!r} is not an image that can be decoded "
            f"(JPEG, PNG, WebP, AVIF): {why}",
            column=self._name,
            row=row,
        )


def _files(found: Values, row_count: int) -> dict[int, memoryview]:
    """Return the file of each row that is not null."""
    assert found.offsets is not None
    content = np.ascontiguousarray(found.values).view(np.uint8).data.toreadonly()
    edges = found.offsets.tolist()
    return {
        row: content[edges[row] : edges[row + 1]]
        for row in range(row_count)
        if found.valid is None or found.valid[row]
    }


def _failures() -> tuple[type[BaseException], ...]:
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    # Codecs raise other errors than the documented ones for damaged files, too.
    return (OSError, SyntaxError, ValueError, EOFError, IndexError, struct_error, *bombs)
