"""Files of images: what their heads say, and their pixels.

JPEG of the usual kinds goes to libjpeg-turbo, which gives Pillow's pixels in less time. What it
does not take goes to Pillow, as do all other formats, so that Pillow says what cannot be decoded.
"""

from __future__ import annotations

import functools
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
# EXIF's numbers for images whose rows are columns.
_ON_THEIR_SIDE = range(5, 9)
_MASK_MODES = frozenset({"1", "L", "P"})
_LANES = 4
# Of each thread, once it has decoded such an image; that is 2,000 x 2,000 pixels.
_KEPT_BYTES = 16 << 20
# What decoding takes for each pixel, at most: the pixels, and turned ones beside them; what Pillow
# holds itself, converted, and with 16 bits as NumPy does.
_PIXEL_BYTES = 22
# What JPEG keeps of each pixel of the whole where it comes in several passes.
_KEPT_PIXEL_BYTES = 6
_MODES = {1: "L", 3: "RGB"}
_SPACES = {1: "GRAY", 3: "RGBX"}
# Markers that begin a frame: all from 0xc0 to 0xcf but the tables 0xc4, 0xc8 and 0xcc.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_FRAME = struct.Struct(">BHHB")
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says of its image.

    Attributes:
        width: Pixels of a row.
        height: Rows.
        is_plain: Whether it is a JPEG of luminance or of YCbCr, 8 bits, of one frame.
        is_progressive: Whether it is a JPEG of several scans.
        is_turned: Whether it may say that the image is to be turned.
    """

    width: int
    height: int
    is_plain: bool = False
    is_progressive: bool = False
    is_turned: bool = True

    @property
    def scratch_bytes(self) -> int:
        """Return the memory that decoding takes at most."""
        kept = _KEPT_PIXEL_BYTES if self.is_progressive else 0
        return (kept + _PIXEL_BYTES) * self.width * self.height


class _Turbo(Protocol):
    def decode_jpeg(
        self, data: memoryview, colorspace: str, *, buffer: NDArray[np.uint8]
    ) -> Any: ...


class Decoder:
    """Decodes files into memory that each thread uses again.

    Args:
        channels: 3 for colours, 1 for luminance.

    Raises:
        ConfigurationError: The packages of the ``[images]`` extra are missing.
    """

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._turbo = _libraries()
        self._kept = threading.local()

    def pixels(self, content: memoryview, head: Head) -> NDArray[np.uint8]:
        """Return the pixels of a file, which its thread may use until it decodes the next one.

        Args:
            content: The file.
            head: Its head.

        Returns:
            ``(height, width, 4)``, of which three count, or ``(height, width, 1)``, upright.

        Raises:
            OSError: It cannot be decoded; or a ValueError or SyntaxError, as Pillow has it.
        """
        if head.is_plain:
            lanes = 1 if self._channels == 1 else _LANES
            out = self._memory(head.width * head.height * lanes)
            try:
                found = self._turbo.decode_jpeg(content, _SPACES[self._channels], buffer=out)
            except ValueError:
                # Pillow says what is wrong, or decodes it after all.
                pass
            else:
                pixels = np.asarray(found).reshape(head.height, head.width, lanes)
                return _upright(pixels, _jpeg_orientation(content)) if head.is_turned else pixels
        return self._by_pillow(content)

    def _by_pillow(self, content: memoryview) -> NDArray[np.uint8]:
        mode = _MODES[self._channels]
        with opened(content) as image:
            orientation = int(image.getexif().get(_ORIENTATION, _UPRIGHT))
            found = _eight_bits(image)
            found = found if found.mode == mode else found.convert(mode)
            pixels = np.asarray(found).reshape(found.height, found.width, self._channels)
        if self._channels > 1:
            shape = (*pixels.shape[:2], _LANES)
            wide = self._memory(shape[0] * shape[1] * _LANES).reshape(shape)
            wide[:, :, :3] = pixels
            pixels = wide
        return _upright(pixels, orientation)

    def _memory(self, size: int) -> NDArray[np.uint8]:
        if size > _KEPT_BYTES:
            return np.empty(size, np.uint8)
        kept: NDArray[np.uint8] | None = getattr(self._kept, "memory", None)
        if kept is None or kept.size < size:
            kept = self._kept.memory = np.empty(size, np.uint8)
        return kept[:size]


def head_of(content: memoryview) -> Head:
    """Read the head of a file.

    Raises:
        OSError: It is not an image; or a ValueError or SyntaxError, as Pillow has it.
    """
    head = _jpeg_head(content) if bytes(content[:3]) == _JPEG else None
    if head is not None:
        return head
    with opened(content) as image:
        return Head(image.width, image.height, is_progressive="progressive" in image.info)


def upright_size(content: memoryview, head: Head) -> tuple[int, int]:
    """Return the height and the width of an image once it is turned as its file says.

    Raises:
        OSError: As `head_of`.
    """
    if head.is_turned:
        with opened(content) as image:
            if int(image.getexif().get(_ORIENTATION, _UPRIGHT)) in _ON_THEIR_SIDE:
                return head.width, head.height
    return head.height, head.width


def mask_pixels(content: memoryview, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the numbers of a mask, ``(height, width)``: grey levels, or indices of a palette.

    Args:
        content: The file.
        size: Height and width that it must have.

    Raises:
        ValueError: It has another size, or more than one number of 8 bits for a pixel; or what
            `Decoder.pixels` raises.
    """
    with opened(content) as image:
        if (image.height, image.width) != size:
            raise ValueError(
                f"the mask has {image.height} x {image.width} pixels, and its image {size[0]} x "
                f"{size[1]}, turned upright"
            )
        if image.mode not in _MASK_MODES:
            raise ValueError(
                f"the mask is of the mode {image.mode}; it must have one number of at most 8 bits "
                "for each pixel"
            )
        return np.asarray(image).astype(np.uint8, copy=False)


def opened(content: memoryview) -> Image.Image:
    """Have Pillow read the head of a file; the pixels are decoded when they are looked at."""
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    # Copies of large files would hold up all threads.
    file: Any = pa.BufferReader(pa.py_buffer(content))
    return Image.open(file, formats=FORMATS)


@functools.cache
def decoder_versions() -> str:
    """Return what decodes here, with versions: other ones may give other pixels.

    Raises:
        ConfigurationError: The packages of the ``[images]`` extra are missing.
    """
    _libraries()
    from importlib.metadata import version  # noqa: PLC0415 - takes 10 ms, where it is wanted

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
            "decode_image needs Pillow and simplejpeg on the server; the operator installs "
            "headrace[images]"
        ) from error
    return cast("_Turbo", simplejpeg)


def _jpeg_head(content: memoryview) -> Head | None:
    """Return the head of a JPEG; None where Pillow had better look at it."""
    at, is_adobe, is_turned = 2, False, False
    head: Head | None = None
    while at + 4 <= len(content) and content[at] == 0xFF:  # noqa: PLR2004 - begins a marker
        marker = content[at + 1]
        if marker == 0xFF:  # noqa: PLR2004 - fills up
            at += 1
            continue
        if marker in _NO_LENGTH:
            at += 2
            continue
        if marker == _SCAN:
            # What comes before it is all that Pillow looks at.
            return None if head is None or is_adobe else replace(head, is_turned=is_turned)
        length = content[at + 2] << 8 | content[at + 3]
        if marker in _FRAMES and head is None:
            if at + 4 + _FRAME.size > len(content):
                return None
            depth, height, width, parts = _FRAME.unpack_from(content, at + 4)
            # Three parts of an Adobe file may be red, green and blue as they are.
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


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return pixels turned as EXIF says that they are to be."""
    if not 2 <= orientation <= 8:  # noqa: PLR2004 - EXIF's numbers; the rest says nothing
        return pixels
    if orientation >= 5:  # noqa: PLR2004 - rows are columns
        pixels = pixels.transpose(1, 0, 2)
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return an image of 16 bits with its upper eight; Pillow would cut instead of scale."""
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
