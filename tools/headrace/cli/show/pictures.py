"""Draw images of samples: files of common formats, and arrays of bytes.

The contents of a dataset are untrusted. Pillow decodes only four formats, after a check of the
size, and only its pixels reach a terminal or a picture.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.show.image_sides import image_format, image_sides
from headrace.cli.show.texts import value_text
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image

_MAX_PIXELS = 1 << 26
"""Of a file to decode: 8,192 x 8,192, which takes 256 MiB (arbitrary)."""

_PILLOW_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_CHANNELS = ((), (1,), (3,), (4,))
"""The axes of an image after its height and width."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample to show.

    Attributes:
        sample_id: Its id.
        values: Its values by column, as Python objects from Arrow.
    """

    sample_id: int
    values: Mapping[str, Any]


def picture_columns(schema: pa.Schema, samples: Sequence[Sample]) -> list[str]:
    """Return the columns with images, according to their types or to the samples."""
    names = [name for name in schema.names if samples and name in samples[0].values]
    return [
        name
        for name in names
        if _is_raster(schema.field(name).type)
        or any(media_type(sample.values[name]) for sample in samples)
    ]


def media_type(value: object) -> str | None:
    """Return the media type of an encoded image from its first bytes; None for anything else."""
    found = image_format(value) if isinstance(value, bytes) else None
    return None if found is None else f"image/{found.lower()}"


def picture(value: object, side: int) -> Image.Image | str:
    """Draw an image that fits into a square, or return a note why that is impossible.

    Args:
        value: The value of a column that `picture_columns` returned.
        side: The side of the square in pixels. Smaller images are enlarged by a whole factor.

    Raises:
        ConfigurationError: Pillow is not installed.
    """
    if value is None:
        return "null"
    drawn = _decoded(value, side) if isinstance(value, bytes) else _raster(value)
    if isinstance(drawn, str):
        return drawn
    drawn.thumbnail((side, side))
    scale = side // max(drawn.size)
    if scale > 1:
        nearest = _pillow().Resampling.NEAREST
        drawn = drawn.resize((drawn.width * scale, drawn.height * scale), nearest)
    return drawn


def has_pillow() -> bool:
    """Return whether images can be drawn here."""
    try:
        _pillow()
    except ConfigurationError:
        return False
    return True


def png_of(drawn: Image.Image) -> bytes:
    """Return an image as a PNG."""
    sink = io.BytesIO()
    drawn.save(sink, "PNG")
    return sink.getvalue()


def data_uri(content: bytes, media: str) -> str:
    """Return a file as a data URI."""
    return f"data:{media};base64,{base64.b64encode(content).decode('ascii')}"


def _is_raster(kind: pa.DataType) -> bool:
    shape, item = shape_of(kind)
    return str(item) == "uint8" and is_image_shape(shape) and 0 not in shape


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Return whether arrays are 2D, optionally with 1, 3 or 4 channels."""
    return len(shape) > 1 and shape[2:] in _CHANNELS


def shape_of(kind: pa.DataType) -> tuple[tuple[int, ...], pa.DataType]:
    """Return the shape of the values of a type, () if it is not fixed, and their item type."""
    import pyarrow as pa  # noqa: PLC0415 - needs the [storage] extra

    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape), kind.value_type
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return tuple(shape), kind


def _raster(value: Any) -> Image.Image | str:
    import numpy as np  # noqa: PLC0415

    try:
        pixels = np.asarray(value, np.uint8)
    except (TypeError, ValueError):
        return "contains nulls"
    if pixels.shape[2:] == (1,):
        pixels = pixels[:, :, 0]
    mode = "RGBA" if pixels.shape[2:] == (4,) else "RGB"
    drawn: Image.Image = _pillow().fromarray(pixels).convert(mode)
    return drawn


def _decoded(content: bytes, side: int) -> Image.Image | str:
    if media_type(content) is None:
        return value_text(content)
    sides = image_sides(content)
    if sides is not None and math.prod(sides) > _MAX_PIXELS:
        return f"too large: {sides[0]} x {sides[1]}"
    pillow = _pillow()
    bombs = (pillow.DecompressionBombError, pillow.DecompressionBombWarning)
    try:
        with pillow.open(io.BytesIO(content), formats=_PILLOW_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                return f"too large: {image.width} x {image.height}"
            image.draft("RGB", (side, side))
            drawn: Image.Image = image.convert("RGBA" if image.has_transparency_data else "RGB")
            return drawn
    except (OSError, SyntaxError, ValueError, MemoryError, *bombs) as error:
        return f"cannot be decoded: {str(error)[:80]}"


def _pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415 - of the [images] extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "drawing images needs Pillow, which is not installed here; install it with "
            "pip install 'headrace[images]'"
        ) from error
    return Image
