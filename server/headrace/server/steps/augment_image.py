"""The step that decodes image files and applies transforms to them, on all processors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from struct import error as struct_error
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, StepFailedError
from headrace.payload import BFLOAT16
from headrace.server.batch.batch_values import Batch, Claim, Values
from headrace.server.images.files import Decoder, Head, head_of, upright_size
from headrace.server.images.frame import Frame
from headrace.server.images.pixel_cache import PixelCache
from headrace.server.images.recipe import ImageDraws, recipe_of
from headrace.server.layout.wire_columns import DTYPES, WireColumn
from headrace.server.steps.column_steps import Columns, tensor_of, wanted_column
from headrace.server.steps.follow_image import Followed, Followers, followers_of
from headrace.server.steps.image_work import check_work, decode_work
from headrace.server.steps.mix_images import Mixed, MixImages
from headrace.server.steps.row_pool import Waits, Workers
from headrace.v1 import shard_service_pb2 as pb

# Heads that a thread reads in one go: less than a millisecond, as much as decoding one image takes.
_HEADS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """The images of a batch before they are made.

    Attributes:
        values: Their column, which has no values yet.
        files: The file of each row; null rows have none.
        heads: The heads of the files, by row.
        draws: The random draws of the batch.
        beside_bytes: The memory in bytes that making the images takes besides the images.
        row_count: How many images are made, including those that are only mixed into others.
        mixed: How the images are mixed; None if they are not.
        whole: The images before they are mixed or sent, if they have already been made.
        damaged: Rows whose files cannot be decoded, if that is not an error.
        followed: The columns that have followed the images.
    """

    values: Values
    files: Mapping[int, memoryview]
    heads: Mapping[int, Head]
    draws: ImageDraws
    beside_bytes: int
    row_count: int
    mixed: Mixed | None = None
    whole: NDArray[np.generic] | None = None
    damaged: list[int] = field(default_factory=list)
    followed: Mapping[str, Values] = field(default_factory=dict)


class AugmentImage:
    """Turn a column of image files into a tensor.

    Args:
        message: The step as requested.
        place: The step's place in the request.
        mixing: Mixes the images with one another at the end; None for no mixing.
    """

    def __init__(
        self, message: pb.DecodeImage, place: int, mixing: MixImages | None = None
    ) -> None:
        self._mixing = mixing
        self.may_skip: Final = message.on_error == pb.ON_ERROR_SKIP
        self._name = message.column
        self._place = place
        self._recipe = recipe_of(message)
        self._decoder = Decoder(self._recipe.channels)
        height, width = self._recipe.height, self._recipe.width
        self._followers = followers_of(message, height=height, width=width)
        if self._followers is not None and mixing is not None:
            raise BadArgumentError(
                f"{mixing.name}: images with masks or boxes cannot be mixed; leave one out",
                field="steps",
            )

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        """Return the columns after this step.

        Raises:
            BadArgumentError: The step does not support these columns.
        """
        column = wanted_column(before, self._name, "decode_image", (pb.COLUMN_KIND_BYTES,))
        made = self._made(column)
        if self._followers is not None:
            return {**before, **self._followers.columns(before), self._name: made}
        others = dict(before) if self._mixing is None else self._mixing.columns(before, made)
        return {**others, self._name: made}

    def prepare(self, batch: Batch, *, workers: Workers, claim: Claim) -> Waits[Images]:
        """Read the headers of a batch's files, and make the columns that follow its images.

        Args:
            batch: The columns of the batch.
            workers: The threads that work on the rows.
            claim: Is called with the number of bytes before they are allocated.

        Raises:
            StepFailedError: A file is not an image, or the images take too much work or time.
        """
        found = batch.columns[self._name]
        assert found.offsets is not None
        content = np.ascontiguousarray(found.values).view(np.uint8).data.toreadonly()
        edges = found.offsets.tolist()
        files = {
            row: content[edges[row] : edges[row + 1]]
            for row in range(batch.row_count)
            if found.valid is None or found.valid[row]
        }
        damaged: list[int] = []
        heads = yield from self._heads(batch, files, damaged, workers)
        scratch = max((head.scratch_bytes for head in heads.values()), default=0)
        mixed, beside_bytes = None, workers.pool.threads * (scratch + self._recipe.image_bytes)
        if self._mixing is not None and batch.partnered is not None:
            mixed = self._mixing.mixed(batch.partnered, self._recipe.height, self._recipe.width)
            beside_bytes += self._mixing.cost(batch)
        if mixed is not None or self.may_skip:
            # All images before they are mixed or sent.
            beside_bytes += batch.row_count * self._image_bytes
        count = batch.row_count if mixed is None else mixed.partners.size
        images = Images(
            values=self._nothing(found, count),
            files=files,
            heads=heads,
            draws=self._recipe.draws(batch.keys, self._place),
            beside_bytes=beside_bytes,
            row_count=batch.row_count,
            mixed=mixed,
            damaged=damaged,
        )
        if self._followers is None or damaged:
            return images
        cost = self._followers.cost(batch)
        claim(images.beside_bytes + cost)
        followed = self._followers.begin(batch)
        follow = self._following(self._followers, batch, images, followed)
        yield from workers.work(len(images.files), follow)
        if images.damaged:
            return images
        return replace(
            images,
            followed=self._followers.values(batch, followed),
            beside_bytes=images.beside_bytes + cost,
        )

    def _nothing(self, found: Values, count: int) -> Values:
        # Images take no memory before they are made.
        nothing = np.broadcast_to(np.zeros((), self._dtype), (count, *self._recipe.shape))
        return Values(self._made(found.column), nothing, None, found.valid)

    def _following(
        self, followers: Followers, batch: Batch, images: Images, followed: Followed
    ) -> Callable[[int], None]:
        """Return a function that makes the masks and boxes of an image."""
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

        return follow

    def decoded(self, images: Images, workers: Workers) -> Waits[Images]:
        """Make the images before their target exists, and find damaged ones.

        Args:
            images: What `prepare` returned.
            workers: The threads that work on the rows.

        Raises:
            StepFailedError: The images take too long.
        """
        whole = np.empty((images.row_count, *self._recipe.shape), self._dtype)
        yield from self._make_all(images, rows_of(whole), workers)
        return replace(images, whole=whole)

    def make(
        self, images: Images, rows: Sequence[NDArray[np.uint8]], workers: Workers
    ) -> Waits[None]:
        """Make the images of a batch.

        Args:
            images: What `prepare` returned.
            rows: The target of each image, as bytes.
            workers: The threads that work on the rows.

        Raises:
            StepFailedError: An image cannot be decoded, or the images take too long.
        """
        if images.mixed is None and images.whole is None:
            return self._make_all(images, rows, workers)
        return self._make_of(images, rows, workers)

    def _make_of(
        self, images: Images, rows: Sequence[NDArray[np.uint8]], workers: Workers
    ) -> Waits[None]:
        """Write the images to send, from images that have already been made."""
        shape, whole, how = self._recipe.shape, images.whole, images.mixed
        if whole is None:
            whole = np.empty((images.row_count, *shape), self._dtype)
            yield from self._make_all(images, rows_of(whole), workers)
        # Put height and width last, even for images whose channels come last.
        planes = whole if self._recipe.is_chw else whole.transpose(0, 3, 1, 2)
        partners = [] if how is None else how.partners.tolist()

        def make(row: int) -> None:
            out = rows[row].view(self._dtype).reshape(shape)
            out = out if self._recipe.is_chw else out.transpose(2, 0, 1)
            if how is None:
                out[...] = planes[row]
            else:
                how.mix.mix(planes[row], planes[partners[row]], out)

        yield from workers.work(len(rows), make)

    def _make_all(
        self, images: Images, rows: Sequence[NDArray[np.uint8]], workers: Workers
    ) -> Waits[None]:
        shape = self._recipe.shape
        places = list(images.files)
        for row in set(range(len(rows))).difference(places):
            rows[row][:] = 0

        def make(at: int) -> None:
            row = places[at]
            out = rows[row].view(self._dtype).reshape(shape)
            self._make(row, images, out, workers.pool.pixels)

        return workers.work(len(places), make)

    @property
    def _dtype(self) -> np.dtype[np.generic]:
        return DTYPES[self._recipe.element_type]

    @property
    def _image_bytes(self) -> int:
        return math.prod(self._recipe.shape) * self._dtype.itemsize

    def with_images(
        self, batch: Batch, images: Images, made: NDArray[np.generic] | None = None
    ) -> Batch:
        """Return a batch with its images, and with its labels mixed in the same way.

        Args:
            batch: The batch.
            images: What `prepare` returned.
            made: The images; None if they are written later.

        Raises:
            StepFailedError: A label is not the index of a class.
        """
        if self._mixing is not None and images.mixed is not None:
            batch = self._mixing.with_labels(batch, images.mixed)
        valid = images.values.valid
        valid = None if valid is None else valid[: batch.row_count]
        values = replace(images.values, valid=valid)
        if made is not None:
            values = replace(values, values=made)
        columns = {**batch.columns, **images.followed, self._name: values}
        return replace(batch, columns=columns)

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

    def _make(
        self, row: int, images: Images, out: NDArray[np.generic], kept: PixelCache | None
    ) -> None:
        try:
            pixels = self._pixels(images.files[row], images.heads[row], kept)
        except _failures() as error:
            self._note(row, error, images.damaged)
        else:
            bits = out.view(np.uint16) if out.dtype == BFLOAT16 else out
            self._recipe.make(pixels, images.draws, row, bits)

    def _pixels(self, file: memoryview, head: Head, kept: PixelCache | None) -> NDArray[np.uint8]:
        if kept is None:
            return self._decoder.pixels(file, head)
        key = kept.key(file, self._recipe.channels)
        pixels = kept.get(key)
        if pixels is None:
            pixels = self._decoder.pixels(file, head)
            kept.put(key, pixels)
        return pixels

    def _note(self, row: int, error: BaseException, damaged: list[int]) -> None:
        """Note a file that cannot be decoded, if that is not an error."""
        if not self.may_skip:
            raise self._failure(row, error) from error
        damaged.append(row)

    def _failure(self, row: int, error: BaseException) -> StepFailedError:
        # Pillow names the object that holds the bytes.
        why = str(error).partition(" <")[0][:200]
        return StepFailedError(
            f"decode_image: row {row} of column {self._name!r} is not an image that can be decoded "
            f"(JPEG, PNG, WebP, AVIF): {why}",
            column=self._name,
            row=row,
        )


def rows_of(made: NDArray[np.generic]) -> list[NDArray[np.uint8]]:
    """Return the bytes of each row of a contiguous array."""
    row_bytes = math.prod(made.shape[1:]) * made.dtype.itemsize
    return list(made.reshape(-1).view(np.uint8).reshape(len(made), row_bytes))


def _failures() -> tuple[type[BaseException], ...]:
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    # Codecs raise other errors than the documented ones for damaged files, too.
    return (OSError, SyntaxError, ValueError, EOFError, IndexError, struct_error, *bombs)
