"""Tests of decoding: Pillow's pixels, upright, and refusals instead of crashes."""

from __future__ import annotations

import io
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from headrace.server.stages.images.files import (
    Decoder,
    decoder_versions,
    head_of,
    opened,
    reduction_of,
)

_ORIENTATION = 0x0112
_SMOOTH = np.add.outer(np.arange(40), np.arange(61))[:, :, None] * np.array([1.0, 2.0, 1.5])


def _image(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(_SMOOTH.astype(np.uint8)).convert(mode)


def _file(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _decoded(content: bytes, channels: int = 3) -> NDArray[np.uint8]:
    view = memoryview(content)
    return Decoder(channels).pixels(view, head_of(view))[:, :, :channels].copy()


def _by_pillow(content: bytes) -> NDArray[np.uint8]:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_upright(kind: str, orientation: int) -> None:
    """What EXIF says of rotation is applied, for each of its eight values and each format."""
    image = _image()
    exif = image.getexif()
    exif[_ORIENTATION] = orientation
    content = _file(image, kind, exif=exif.tobytes())

    assert np.array_equal(_by_pillow(content), _decoded(content))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_reduced(reduction: int, channels: int, orientation: int) -> None:
    """A JPEG is reduced while it is decoded, close to what averaging its pixels gives."""
    rows, columns = np.mgrid[:93, :150]
    smooth = np.stack([rows * 2, columns, rows + columns], axis=2).astype(np.uint8)
    image = Image.fromarray(smooth)
    exif = image.getexif()
    exif[_ORIENTATION] = orientation
    content = _file(image, "JPEG", quality=95, exif=exif.tobytes())
    head = head_of(memoryview(content))
    pixels = Decoder(channels).pixels(memoryview(content), head, reduction)[:, :, :channels]

    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    height, width = -(-upright.height // reduction), -(-upright.width // reduction)
    assert (height, width) == pixels.shape[:2]
    wanted = upright.convert("L" if channels == 1 else "RGB").resize(
        (width, height), Image.Resampling.BOX
    )
    differences = np.asarray(wanted, np.int16).reshape(pixels.shape) - pixels
    # The border, where blocks are not full, may differ more.
    assert np.abs(differences[1:-1, 1:-1]).max() <= 8


@pytest.mark.parametrize(
    ("size", "least", "expected"),
    [
        ((400, 400), (401, 1), 1),
        ((400, 400), (201, 200), 1),
        ((400, 400), (200, 200), 2),
        ((3000, 4000), (448, 598), 4),
        ((3000, 4000), (100, 100), 8),
        ((1, 1), (1, 1), 1),
    ],
)
def test_how_much_is_reduced(size: tuple[int, int], least: tuple[int, int], expected: int) -> None:
    """By the largest of 2, 4 and 8 that leaves enough in both directions."""
    assert expected == reduction_of(*size, least)


def test_files_are_not_copied() -> None:
    """A copy of a large file holds up all streams; it is read where it lies."""
    noise = np.random.default_rng(1).integers(0, 256, (1200, 1200, 3), np.uint8)
    content = _file(Image.fromarray(noise), "PNG", compress_level=0)

    tracemalloc.start()
    try:
        head_of(memoryview(content))
        with opened(memoryview(content)) as image:
            image.load()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < len(content) // 2


def _moved(content: bytes, marker: int) -> bytes:
    """Put a segment of a JPEG behind that of its frame."""
    frame = next(at for at in range(len(content)) if content[at : at + 2] == b"\xff\xc0")
    start = content.index(bytes((0xFF, marker)))
    end = start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")
    behind = frame + 2 + int.from_bytes(content[frame + 2 : frame + 4], "big")
    assert end <= frame
    return content[:start] + content[end:behind] + content[start:end] + content[behind:]


@pytest.mark.parametrize("marker", [0xE1, 0xEE])
def test_what_stands_behind_the_frame(marker: int) -> None:
    """EXIF's rotation, and Adobe's word that colours are red, green and blue, count there too."""
    image = _image()
    exif = image.getexif()
    exif[_ORIENTATION] = 6
    content = _file(image, "JPEG", exif=exif.tobytes(), keep_rgb=True)
    if marker == 0xEE and b"\xff\xee" not in content:
        # Pillow writes none for colours that are left as they are.
        adobe = b"\xff\xee\x00\x0eAdobe\x00\x64" + bytes(5)
        content = content[:2] + adobe + content[2:]

    assert np.array_equal(_by_pillow(_moved(content, marker)), _decoded(_moved(content, marker)))


_KINDS = {
    "baseline": _file(_image(), "JPEG", quality=90),
    "progressive": _file(_image(), "JPEG", progressive=True),
    "4:4:4": _file(_image(), "JPEG", subsampling=0),
    "4:2:2": _file(_image(), "JPEG", subsampling=1),
    "optimized": _file(_image(), "JPEG", optimize=True, restart_marker_rows=1),
    "grey JPEG": _file(_image("L"), "JPEG"),
    "CMYK": _file(_image("CMYK"), "JPEG"),
    "JPEG of RGB": _file(_image(), "JPEG", keep_rgb=True),
    "PNG": _file(_image(), "PNG"),
    "transparent PNG": _file(_image("RGBA"), "PNG"),
    "palette": _file(_image("P"), "PNG"),
    "one bit": _file(_image("1"), "PNG"),
    "WebP": _file(_image(), "WEBP"),
    "animated WebP": _file(
        _image(), "WEBP", save_all=True, append_images=[_image("L").convert("RGB")]
    ),
    "animated PNG": _file(_image(), "PNG", save_all=True, append_images=[_image("L")]),
    "AVIF": _file(_image(), "AVIF"),
}


@pytest.mark.parametrize("content", _KINDS.values(), ids=list(_KINDS))
def test_as_pillow(content: bytes) -> None:
    """Each kind of file has Pillow's pixels, of animations those of the first frame."""
    assert np.array_equal(_by_pillow(content), _decoded(content))


@pytest.mark.parametrize("content", _KINDS.values(), ids=list(_KINDS))
def test_luminance(content: bytes) -> None:
    """With one channel it is luminance, to a level, since JPEG holds it as such."""
    wanted = np.asarray(Image.fromarray(_by_pillow(content)).convert("L"))

    assert np.abs(wanted.astype(int) - _decoded(content, 1)[:, :, 0]).max() <= 2


@pytest.mark.parametrize("channels", [1, 3])
def test_large(channels: int) -> None:
    """Pillow keeps an image of more than 16 MiB in pieces, which come out as one."""
    pixels = np.random.default_rng(0).integers(0, 256, (4200, 4100, channels), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(file, "PNG", compress_level=0)
    content = memoryview(file.getvalue())

    found = Decoder(channels).pixels(content, head_of(content))

    assert np.array_equal(pixels, found[:, :, :channels])


def test_sixteen_bits() -> None:
    """Of 16 bits the upper eight count."""
    deep = (np.arange(40 * 61, dtype=np.uint16) * 26).reshape(40, 61)
    content = _file(Image.fromarray(deep), "PNG")

    assert np.array_equal((deep >> 8).astype(np.uint8), _decoded(content, 1)[:, :, 0])


def _empty_png() -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        checked = name + body
        return len(body).to_bytes(4, "big") + checked + zlib.crc32(checked).to_bytes(4, "big")

    head = (0).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IEND", b"")


_BASE = _KINDS["baseline"]
_AT_FRAME = _BASE.index(b"\xff\xc0")
_HOSTILE = {
    "1 nothing": b"",
    "2 text": b"not an image at all",
    "3 GIF, which is none of the formats": _file(_image("P"), "GIF"),
    "4 BMP": _file(_image(), "BMP"),
    "5 cut in the pixels": _BASE[: len(_BASE) * 2 // 3],
    "6 cut in the head": _BASE[:100],
    "7 two bytes": _BASE[:2],
    "8 no size": _BASE[: _AT_FRAME + 5] + bytes(4) + _BASE[_AT_FRAME + 9 :],
    "9 a PNG of no pixels": _empty_png(),
    "10 a PNG that is cut": _KINDS["PNG"][:-40],
    "11 a WebP that is cut": _KINDS["WebP"][:-40],
    "12 an AVIF that is cut": _KINDS["AVIF"][: len(_KINDS["AVIF"]) // 2],
    "13 segments without end": b"\xff\xd8" + b"\xff\xe0\x00\x00" * 1000,
    "14 only fill bytes": b"\xff\xd8" + b"\xff" * 5000,
    "15 a head that claims more": _BASE[: _AT_FRAME + 5] + b"\xff\xff" * 2 + _BASE[_AT_FRAME + 9 :],
}


@pytest.mark.parametrize("content", _HOSTILE.values(), ids=list(_HOSTILE))
def test_hostile(content: bytes) -> None:
    """What is damaged or no image is refused as Pillow refuses it, by one of its errors."""
    refusals = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
    with pytest.raises(refusals):
        _decoded(content)


def test_memory_is_used_again() -> None:
    """A thread's second image of a size lies where the first did, and is its own."""
    decoder = Decoder(3)
    first, second = (memoryview(_KINDS[name]) for name in ("baseline", "WebP"))
    at = decoder.pixels(first, head_of(first))
    before = at.copy()

    again = decoder.pixels(second, head_of(second))

    assert at.ctypes.data == again.ctypes.data
    assert not np.array_equal(before, again)


def test_versions() -> None:
    """The decoder's version names every library that makes pixels."""
    assert all(name in decoder_versions() for name in ("simplejpeg", "pillow", "webp", "avif"))
