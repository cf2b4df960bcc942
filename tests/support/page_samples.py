"""Samples for tests of the page: some that an enemy chose, and some that are nice to look at."""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw

SCRIPT = "<script>document.title='run'</script><img src=x onerror=document.title='run'>"
_SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='document.title=1'><script>1</script></svg>"
_HTML = b"<!DOCTYPE html><script>document.title='run'</script>"
TURNED = "user \u202e drowssap \u2066\u202eevil"
NAME = "a\"b'c<i>&\u202ed</i>"
_LONG = "long " * 2_000_000


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def _bomb(side: int) -> bytes:
    """A PNG of some kilobytes that says it has side x side pixels."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    rows = _chunk(b"IDAT", zlib.compress(bytes(1 << 20), 9))
    return b"\x89PNG\r\n\x1a\n" + head + rows + _chunk(b"IEND", b"")


def _png() -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (8, 6), (200, 20, 20)).save(sink, "PNG")
    return sink.getvalue()


FILES = [_png(), _SVG, _HTML, _bomb(60_000), b"%PDF-1.7 <script>", _png() + _HTML, None]


def hostile_table() -> pa.Table:
    """Make seven samples whose every value was chosen by an enemy."""
    fields: list[pa.Field[Any]] = [
        pa.field("text", pa.string()),
        pa.field("file", pa.binary()),
        pa.field(NAME, pa.int64()),
        pa.field(
            "kind", pa.int64(), metadata={"headrace.classes": f'["{NAME[0]}{_SVG.decode()}"]'}
        ),
    ]
    schema = pa.schema(fields)
    texts = [SCRIPT, TURNED, _LONG, "", None, "{{ 7 * 7 }}", "\x00\x07"]
    return pa.table([texts, FILES, [0, None, 2, 3, 4, 5, 6], [0] * 7], schema=schema)


SHAPES = ("circle", "square", "triangle")


def shapes_table(count: int) -> pa.Table:
    """Make drawings of one shape each, with its mask, its box, its class and a sentence."""
    random = np.random.default_rng(7)
    rows = [_shape(number % 3, random) for number in range(count)]
    fields: list[pa.Field[Any]] = [
        pa.field("image", pa.binary()),
        pa.field("label", pa.int64(), metadata={"headrace.classes": json.dumps(SHAPES)}),
        pa.field("mask", pa.binary()),
        pa.field("boxes", pa.list_(pa.list_(pa.float32(), 4))),
        pa.field("caption", pa.string()),
        pa.field("tokens", pa.list_(pa.int32())),
        pa.field("weight", pa.float64()),
    ]
    captions = [f"A {SHAPES[i % 3]}, drawn for a test." if i % 7 else "" for i in range(count)]
    tokens = [random.integers(0, 32_000, 4 + i % 9).tolist() for i in range(count)]
    weights = [None if i % 5 == 4 else i % 4 / 4 for i in range(count)]
    images, masks, boxes = zip(*rows, strict=True)
    return pa.table(
        [images, [i % 3 for i in range(count)], masks, boxes, captions, tokens, weights],
        schema=pa.schema(fields),
    )


def _shape(kind: int, random: np.random.Generator) -> tuple[bytes, bytes, list[list[float]]]:
    side, size = 160, int(random.integers(40, 90))
    x, y = (int(random.integers(8, side - size - 8)) for _ in range(2))
    low = random.integers(170, 235, 3)
    ground = np.clip(low + np.linspace(0, 40, side)[:, None, None] * np.ones((1, side, 1)), 0, 255)
    image = Image.fromarray(ground.astype(np.uint8))
    mask = Image.new("L", (side, side))
    colour = tuple(random.integers(20, 160, 3).tolist())
    for target, fill in ((image, colour), (mask, kind + 1)):
        pen = ImageDraw.Draw(target)
        if kind == 0:
            pen.ellipse((x, y, x + size, y + size), fill=fill)
        elif kind == 1:
            pen.rectangle((x, y, x + size, y + size), fill=fill)
        else:
            pen.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=fill)
    return _file(image), _file(mask), [[x, y, x + size, y + size]]


def _file(image: Image.Image) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "PNG")
    return sink.getvalue()
