"""The step that decodes files of images and puts each through its transforms, on all processors."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from struct import error as struct_error

import numpy as np

from headrace.errors import StepFailedError
from headrace.server.batch.batch_values import Batch, Claim, Values
from headrace.server.images.files import Decoder, Head, head_of
from headrace.server.images.recipe import ImageDraws, recipe_of
from headrace.server.layout.wire_columns import DTYPES, WireColumn
from headrace.server.steps.column_steps import Columns, Work, tensor_of, wanted_column
from headrace.server.steps.image_work import check_work, decode_work
from headrace.server.steps.row_pool import RowPool
from headrace.v1 import shard_service_pb2 as pb

# Heads that a thread reads in one go: less than a millisecond, as much as decoding one image takes.
_HEADS = 32


class AugmentImage:
    """Makes a column of files of images a tensor.

    Args:
        message: What was asked for.
        place: The step's place in the request.
    """

    def __init__(self, message: pb.DecodeImage, place: int) -> None:
        self._name = message.column
        self._place = place
        self._recipe = recipe_of(message)
        self._decoder = Decoder(self._recipe.channels)

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        """Return the columns that it makes of others.

        Raises:
            BadArgumentError: It cannot be done with them.
        """
        column = wanted_column(before, self._name, "decode_image", (pb.COLUMN_KIND_BYTES,))
        return {**before, self._name: self._made(column)}

    def run(
        self, batch: Batch, *, pool: RowPool, caller: object, timeout_s: float, claim: Claim
    ) -> Generator[None, None, Batch]:
        """Make the images of a batch; yields while it works.

        Args:
            batch: Its columns.
            pool: Works on the rows.
            caller: Whose they are.
            timeout_s: How long they may take.
            claim: Is told how much memory that takes, before it takes it.

        Raises:
            StepFailedError: One cannot be decoded, or they take too long.
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
        heads = yield from self._heads(files, pool, caller, timeout_s)
        column = self._made(found.column)
        size = batch.row_count * math.prod(self._recipe.shape) * column.dtype.itemsize
        scratch = max((head.scratch_bytes for head in heads.values()), default=0)
        claim(size + pool.threads * (scratch + self._recipe.image_bytes))
        shape = (batch.row_count, *self._recipe.shape)
        # Rows that are null stay zeros.
        made = (
            np.empty(shape, column.dtype)
            if len(files) == len(edges) - 1
            else np.zeros(shape, column.dtype)
        )
        draws = self._recipe.draws(batch.keys, self._place)
        rows = list(files)

        def make(at: int) -> None:
            self._make(rows[at], files[rows[at]], heads[rows[at]], draws, made[rows[at]])

        yield from pool.work(caller, len(rows), make, timeout_s=timeout_s)
        values = Values(column, made, None, found.valid)
        return replace(batch, columns={**batch.columns, self._name: values})

    def _made(self, column: WireColumn) -> WireColumn:
        kind = self._recipe.element_type
        made = tensor_of(column, self._recipe.shape)
        return replace(made, element_type=kind, dtype=DTYPES[kind], logical_type="")

    def _heads(
        self, files: dict[int, memoryview], pool: RowPool, caller: object, timeout_s: float
    ) -> Work[dict[int, Head]]:
        """Refuse what takes too much work, before anything of the batch is decoded."""
        rows = list(files)
        heads: dict[int, Head] = {}
        works: dict[int, int] = {}

        def read(part: int) -> None:
            for row in rows[part * _HEADS : (part + 1) * _HEADS]:
                try:
                    head = heads[row] = head_of(files[row])
                    works[row] = decode_work(head.width, head.height, files[row])
                except _failures() as error:
                    raise self._failure(row, error) from error

        yield from pool.work(caller, -(-len(rows) // _HEADS), read, timeout_s=timeout_s)
        total = 0
        for row in rows:
            total += works[row]
            try:
                check_work(total)
            except ValueError as error:
                raise self._failure(row, error) from error
        return heads

    def _make(
        self,
        row: int,
        file: memoryview,
        head: Head,
        draws: ImageDraws,
        out: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    ) -> None:
        try:
            pixels = self._decoder.pixels(file, head)
        except _failures() as error:
            raise self._failure(row, error) from error
        self._recipe.make(pixels, draws, row, out)

    def _failure(self, row: int, error: BaseException) -> StepFailedError:
        # Pillow names the object that holds the bytes.
        why = str(error).partition(" <")[0][:200]
        return StepFailedError(
            f"decode_image: row {row} of column {self._name!r} is not an image that can be decoded "
            f"(JPEG, PNG, WebP, AVIF): {why}",
            column=self._name,
            row=row,
        )


def _failures() -> tuple[type[BaseException], ...]:
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    # Codecs of formats that are damaged raise others than the documented ones, too.
    return (OSError, SyntaxError, ValueError, EOFError, IndexError, struct_error, *bombs)
