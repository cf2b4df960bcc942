"""Read the headers and the pixels of image files.

libjpeg-turbo decodes common kinds of JPEG to the same pixels as Pillow in less time. Pillow decodes
everything else, and reports what cannot be decoded.
"""

from __future__ import annotations

import functools
import math
import struct
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF")

_JPEG = b"\xff\xd8\xff"
_APP1, _APP14, _SCAN = 0xE1, 0xEE, 0xDA
_ORIENTATION = 0x0112
_UPRIGHT = 1
# EXIF orientations that swap rows and columns.
_ON_THEIR_SIDE = range(5, 9)
_MASK_MODES = frozenset({"1", "L", "P"})
_LANES = 4
# Per thread, once it has decoded an image of that size, 2,000 x 2,000 pixels.
_KEPT_BYTES = 16 << 20
_BAND_BYTES = 1 << 20
# The most bytes that decoding takes per pixel: the pixels and a rotated copy; Pillow's own copy,
# the converted one, and NumPy's with 16 bits.
_PIXEL_BYTES = 22
# The bytes that JPEG keeps per pixel of the whole image if it has several passes.
_KEPT_PIXEL_BYTES = 6
# What libjpeg-turbo does in a fraction of the time of decoding all pixels.
_REDUCTIONS = (2, 4, 8)
_MODES = {1: "L", 3: "RGB"}
_SPACES = {1: "GRAY", 3: "RGBX"}
# Markers that start a frame: all from 0xc0 to 0xcf except the tables 0xc4, 0xc8 and 0xcc.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_FRAME = struct.Struct(">BHHB")
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})


@dataclass(frozen=True, slots=True)
class Head:
    """The header of an image file.

    Attributes:
        width: Pixels per row, before rotation.
        height: Rows, before rotation.
        is_plain: Whether it is a JPEG with luminance or YCbCr, 8 bits and one frame.
        is_progressive: Whether it is a JPEG with several scans.
        is_turned: Whether the file may ask for the image to be rotated.
    """

    width: int
    height: int
    is_plain: bool = False
    is_progressive: bool = False
    is_turned: bool = True

    @property
    def scratch_bytes(self) -> int:
        """Return the most memory that decoding takes, in bytes."""
        kept = _KEPT_PIXEL_BYTES if self.is_progressive else 0
        return (kept + _PIXEL_BYTES) * self.width * self.height


class _Turbo(Protocol):
    def decode_jpeg(
        self,
        data: memoryview,
        colorspace: str,
        *,
        buffer: NDArray[np.uint8],
        min_height: int,
        min_width: int,
    ) -> Any: ...


class Decoder:
    """Decode files into memory that each thread reuses.

    Args:
        channels: 3 for colours, 1 for luminance.

    Raises:
        ConfigurationError: The packages of the ``[images]`` extra are missing.
    """

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._turbo = _libraries()
        self._kept = threading.local()

    def pixels(self, content: memoryview, head: Head, reduction: int = 1) -> NDArray[np.uint8]:
        """Return the pixels of a file, which the calling thread may use until its next call.

        Args:
            content: The file.
            head: Its head.
            reduction: By how much it is reduced while it is decoded; from `reduction_of`.

        Returns:
            ``(height, width, 4) uint8`` with three used channels, or ``(height, width, 1) uint8``,
            upright.

        Raises:
            OSError: It cannot be decoded; Pillow may also raise ValueError or SyntaxError.
        """
        if head.is_plain:
            lanes = 1 if self._channels == 1 else _LANES
            height, width = -(-head.height // reduction), -(-head.width // reduction)
            out = self._memory(width * height * lanes)
            try:
                found = self._turbo.decode_jpeg(
                    content,
                    _SPACES[self._channels],
                    buffer=out,
                    min_height=height,
                    min_width=width,
                )
            except ValueError:
                # Pillow reports the error, or decodes the file after all.
                pass
            else:
                pixels = np.asarray(found).reshape(height, width, lanes)
                return _upright(pixels, _jpeg_orientation(content)) if head.is_turned else pixels
        return self._by_pillow(content)

    def _by_pillow(self, content: memoryview) -> NDArray[np.uint8]:
        mode = _MODES[self._channels]
        with opened(content) as image:
            orientation = int(image.getexif().get(_ORIENTATION, _UPRIGHT))
            found = eight_bits(image)
            found = found if found.mode == mode else found.convert(mode)
            lanes = 1 if self._channels == 1 else _LANES
            shape = found.height, found.width, lanes
            pixels = self._memory(math.prod(shape)).reshape(shape)
            _copy(found, pixels)
        return _upright(pixels, orientation)

    def _memory(self, size: int) -> NDArray[np.uint8]:
        if size > _KEPT_BYTES:
            return np.empty(size, np.uint8)
        kept: NDArray[np.uint8] | None = getattr(self._kept, "memory", None)
        if kept is None or kept.size < size:
            kept = self._kept.memory = np.empty(size, np.uint8)
        return kept[:size]


def head_of(content: memoryview) -> Head:
    """Read the header of a file.

    Raises:
        OSError: It is not an image; Pillow may also raise ValueError or SyntaxError.
    """
    head = _jpeg_head(content) if bytes(content[:3]) == _JPEG else None
    if head is not None:
        return head
    with opened(content) as image:
        return Head(image.width, image.height, is_progressive="progressive" in image.info)


def reduction_of(height: int, width: int, least_size: tuple[int, int]) -> int:
    """Return by how much a plain JPEG is reduced while it is decoded: 1, 2, 4 or 8.

    Args:
        height: Its height.
        width: Its width.
        least_size: The least height and width that must be left.
    """
    left = min(height // least_size[0], width // least_size[1])
    return max((each for each in _REDUCTIONS if each <= left), default=1)


def upright_size(content: memoryview, head: Head) -> tuple[int, int]:
    """Return the height and the width of an image after the rotation that its file asks for.

    Raises:
        OSError: `head_of` raised it.
    """
    if head.is_turned:
        with opened(content) as image:
            if int(image.getexif().get(_ORIENTATION, _UPRIGHT)) in _ON_THEIR_SIDE:
                return head.width, head.height
    return head.height, head.width


def mask_pixels(content: memoryview, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the values of a mask, ``(height, width) uint8``: grey levels or palette indices.

    Args:
        content: The file.
        size: The height and width that it must have.

    Raises:
        ValueError: It has another size, or more than one 8-bit number per pixel; errors of
            `Decoder.pixels` are also raised.
    """
    with opened(content) as image:
        if (image.height, image.width) != size:
            raise ValueError(
                f"the mask has {image.height} x {image.width} pixels, but its image has {size[0]} "
                f"x {size[1]} when upright"
            )
        if image.mode not in _MASK_MODES:
            raise ValueError(
                f"the mask has mode {image.mode}; it must have one number of at most 8 bits per "
                "pixel"
            )
        return np.asarray(image).astype(np.uint8, copy=False)


def opened(content: memoryview) -> Image.Image:
    """Let Pillow read the header of a file; the pixels are decoded when they are accessed."""
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    # Copying large files would block all threads.
    file: Any = pa.BufferReader(pa.py_buffer(content))
    return Image.open(file, formats=FORMATS)


@functools.cache
def decoder_versions() -> str:
    """Return the decoders with their versions; other versions may decode to other pixels.

    Raises:
        ConfigurationError: The packages of the ``[images]`` extra are missing.
    """
    _libraries()
    from importlib.metadata import version  # noqa: PLC0415 - takes 10 ms, only if needed

    import PIL.features  # noqa: PLC0415 - of the [images] extra

    names = ("libjpeg_turbo", "webp", "avif")
    parts = [f"{name} {PIL.features.version(name)}" for name in names]
    return "; ".join([f"simplejpeg {version('simplejpeg')}", f"pillow {version('pillow')}", *parts])


def _libraries() -> _Turbo:
    try:
        import PIL.Image  # noqa: F401, PLC0415 - of the [images] extra
        import simplejpeg  # noqa: PLC0415 - of the [images] extra
    except ImportError as error:
        raise ConfigurationError(
            "decode_image needs Pillow and simplejpeg on the server; ask the operator to install "
            "headrace[images]"
        ) from error
    return cast("_Turbo", simplejpeg)


def _jpeg_head(content: memoryview) -> Head | None:
    """Return the header of a JPEG; None if Pillow should read it instead."""
    at, is_adobe, is_turned = 2, False, False
    head: Head | None = None
    while at + 4 <= len(content) and content[at] == 0xFF:  # noqa: PLR2004 - starts a marker
        marker = content[at + 1]
        if marker == 0xFF:  # noqa: PLR2004 - padding
            at += 1
            continue
        if marker in _NO_LENGTH:
            at += 2
            continue
        if marker == _SCAN:
            # Pillow reads only what comes before it.
            return None if head is None or is_adobe else replace(head, is_turned=is_turned)
        length = content[at + 2] << 8 | content[at + 3]
        if marker in _FRAMES and head is None:
            if at + 4 + _FRAME.size > len(content):
                return None
            depth, height, width, parts = _FRAME.unpack_from(content, at + 4)
            # The three components of an Adobe file may be red, green and blue.
            is_plain = depth == 8 and parts in (1, 3) and not is_adobe and width and height  # noqa: PLR2004
            if not is_plain:
                return None
            head = Head(width, height, is_plain=True, is_progressive=marker in _PROGRESSIVE)
        is_adobe = is_adobe or marker == _APP14
        is_turned = is_turned or marker == _APP1
        at += 2 + length
    return None


def _jpeg_orientation(content: memoryview) -> int:
    with opened(content) as image:
        return int(image.getexif().get(_ORIENTATION, _UPRIGHT))


def _copy(image: Image.Image, out: NDArray[np.uint8]) -> None:
    """Copy an image, ``(height, width, 4 or 1) uint8``, without keeping other threads waiting.

    NumPy gets the bytes of an image from Pillow under Python's lock: 140 ms for 16 megapixels.
    """
    height, width, lanes = out.shape
    rows = max(1, _BAND_BYTES // (width * lanes))
    for top in range(0, height, rows):
        below = min(height, top + rows)
        # Large images have no single piece of memory, but their parts have.
        band: Any = image.crop((0, top, width, below))
        values: Any = pa.array(band)
        flat = values if lanes == 1 else values.flatten()
        out[top:below] = flat.to_numpy().reshape(below - top, width, lanes)


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return pixels rotated according to EXIF."""
    if not 2 <= orientation <= 8:  # noqa: PLR2004 - EXIF's numbers; others mean nothing
        return pixels
    if orientation >= 5:  # noqa: PLR2004 - rows are columns
        pixels = pixels.transpose(1, 0, 2)
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def eight_bits(image: Image.Image) -> Image.Image:
    """Return the upper eight bits of a 16-bit image; Pillow would clip instead of scale."""
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
