"""Decode image files to pixels of one size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, ConfigurationError, StageFailedError
from headrace.server.batch.batch_values import Batch, Values
from headrace.server.batch.stage import Columns, ColumnStage, Work, tensor_of, wanted_column
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.images.files import eight_bits
from headrace.server.stages.images.image_work import check_work, decode_work
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb

if TYPE_CHECKING:
    from PIL import Image

_SIDE_LIMIT = 1 << 16
# The most bytes that decoding takes per pixel: Pillow's own copy, the converted one, and NumPy's
# with 16 bits; and what JPEG keeps per pixel of the whole image if it has several passes.
_PIXEL_BYTES = 14
_KEPT_BYTES = 6
_MODES = {1: "L", 3: "RGB"}
# If the format allows it, files are first decoded at no less than this multiple of the requested
# size: Pillow's own choice for thumbnails, fast and hard to tell from full decoding.
_REDUCING_GAP = 2.0


_Box: TypeAlias = tuple[float, float, float, float]


class DecodeImage(ColumnStage):
    """Turn a column of JPEG or PNG files into a tensor of pixels."""

    def __init__(self, message: images_pb.DecodeImage) -> None:
        channels = message.channels or 3
        for field, value in (("height", message.height), ("width", message.width)):
            if not 1 <= value < _SIDE_LIMIT:
                raise BadArgumentError(
                    f"decode_image: {field} is {value}; it must be in [1, {_SIDE_LIMIT})",
                    field="stages",
                )
        if channels not in _MODES or message.fit not in images_pb.ImageFit.values():
            raise BadArgumentError(
                f"decode_image: channels is {channels} and fit {message.fit}; they must be 1 or 3, "
                "and an ImageFit",
                field="stages",
            )
        self._name = message.column
        self._shape = (message.height, message.width, channels)
        self._fit = message.fit or images_pb.IMAGE_FIT_COVER
        self._check_library()

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        column = wanted_column(before, self._name, "decode_image", (pb.COLUMN_KIND_BYTES,))
        return {**before, self._name: replace(tensor_of(column, self._shape), logical_type="")}

    def cost(self, batch: Batch) -> int:
        found = batch.columns[self._name]
        assert found.offsets is not None
        content = _content(found)
        edges = itertools.pairwise(found.offsets.tolist())
        scratch = [self._scratch_bytes(content[start:end]) for start, end in edges if start < end]
        pixels = batch.row_count * math.prod(self._shape)
        return pixels + 2 * len(content) + max(scratch, default=0)

    def _scratch_bytes(self, content: memoryview) -> int:
        """Return the most memory that decoding a file takes, in bytes, from its header alone."""
        from PIL import Image  # noqa: PLC0415 - of the [images] extra

        try:
            with _opened(content) as image:
                pixels = image.width * image.height
                check_work(decode_work(image.width, image.height, content))
                kept = _KEPT_BYTES * pixels if "progressive" in image.info else 0
                self._drafted(image)
                return kept + _PIXEL_BYTES * image.width * image.height
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            # Decoding reports the error for this row later, as it does for an image that is too
            # large.
            return 0

    def work(self, batch: Batch) -> Work[Batch]:
        found = batch.columns[self._name]
        assert found.offsets is not None
        content = _content(found)
        edges = found.offsets.tolist()
        files = [
            (row, content[edges[row] : edges[row + 1]])
            for row in range(batch.row_count)
            if found.valid is None or found.valid[row]
        ]
        yield from self._check(files)
        pixels = np.zeros((batch.row_count, *self._shape), np.uint8)
        for row, file in files:
            with self._failures(row), _opened(file) as image:
                self._paint(image, pixels[row])
            yield
        column = replace(tensor_of(found.column, self._shape), logical_type="")
        decoded = Values(column, pixels, None, found.valid)
        return replace(batch, columns={**batch.columns, self._name: decoded})

    def _check(self, files: list[tuple[int, memoryview]]) -> Work[None]:
        """Refuse images that take too much work, judging by the headers of the files."""
        total = 0
        for row, file in files:
            with self._failures(row):
                with _opened(file) as image:
                    total += decode_work(image.width, image.height, file)
                check_work(total)
            yield

    @contextmanager
    def _failures(self, row: int) -> Iterator[None]:
        from PIL import Image  # noqa: PLC0415 - of the [images] extra

        bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
        try:
            yield
        except (OSError, SyntaxError, ValueError, *bombs) as error:
            raise self._failure(row, str(error)) from error

    def _paint(self, image: Image.Image, out: NDArray[np.uint8]) -> None:
        from PIL import Image  # noqa: PLC0415 - of the [images] extra

        height, width, channels = self._shape
        box, size = self._drafted(image)
        mode = _MODES[channels]
        scaled = eight_bits(image)
        # Converting to the same mode would copy all pixels, and block all threads meanwhile.
        scaled = scaled if scaled.mode == mode else scaled.convert(mode)
        scaled = scaled.resize(size, Image.Resampling.BILINEAR, box, _REDUCING_GAP)
        top, left = (height - size[1]) // 2, (width - size[0]) // 2
        target = out[top : top + size[1], left : left + size[0]]
        target[...] = np.asarray(scaled).reshape(target.shape)

    def _drafted(self, image: Image.Image) -> tuple[_Box, tuple[int, int]]:
        """Decode an image no larger than necessary, if its format allows that.

        Returns:
            The box to scale, in pixels as decoded, and the size to scale it to.
        """
        height, width, channels = self._shape
        box = self._box(image.width, image.height)
        size = (width, height)
        if self._fit == images_pb.IMAGE_FIT_CONTAIN:
            scale = min(width / image.width, height / image.height)
            size = (
                max(1, min(width, round(image.width * scale))),
                max(1, min(height, round(image.height * scale))),
            )
        drafted = image.draft(_MODES[channels], _least_size(image, box, size))
        # The box is in pixels as decoded.
        return box if drafted is None else self._box(image.width, image.height), size

    def _box(self, image_width: int, image_height: int) -> _Box:
        """Return the part of an image that is scaled: left, top, right, bottom."""
        height, width, _ = self._shape
        if self._fit != images_pb.IMAGE_FIT_COVER:
            return 0.0, 0.0, float(image_width), float(image_height)
        scale = max(width / image_width, height / image_height)
        part_width = min(float(image_width), width / scale)
        part_height = min(float(image_height), height / scale)
        left, top = (image_width - part_width) / 2, (image_height - part_height) / 2
        return left, top, left + part_width, top + part_height

    def _failure(self, row: int, why: str) -> StageFailedError:
        return StageFailedError(
            f"decode_image: row {row} of column {self._name!r} is not a JPEG or PNG that can be "
            # Pillow names the object that holds the bytes.
            f"decoded: {why.partition(' <')[0][:200]}",
            column=self._name,
            row=row,
        )

    def _check_library(self) -> None:
        try:
            import PIL.Image  # noqa: F401, PLC0415 - of the [images] extra
        except ImportError as error:
            raise ConfigurationError(
                "decode_image needs Pillow on the server; ask the operator to install "
                "headrace[images]"
            ) from error


def _content(found: Values) -> memoryview:
    return np.ascontiguousarray(found.values).view(np.uint8).data.toreadonly()


def _opened(content: memoryview) -> Image.Image:
    """Read the header of a file; the pixels are decoded when they are accessed."""
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    # Copying large files would block all threads.
    file: Any = pa.BufferReader(pa.py_buffer(content))
    return Image.open(file, formats=("JPEG", "PNG"))


def _least_size(image: Image.Image, box: _Box, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size to which a file may be reduced while it is decoded."""
    left, top, right, bottom = box
    wide = image.width * size[0] / (right - left) * _REDUCING_GAP
    high = image.height * size[1] / (bottom - top) * _REDUCING_GAP
    return max(1, round(wide)), max(1, round(high))
