"""Samples of every MDS encoding, and a way to compare what two readers make of them.

Imported by tests of this repository, and by the scripts that mosaicml-streaming runs in an
environment of its own; so it needs NumPy and Pillow alone.
"""

from __future__ import annotations

import hashlib
import io
import math
from decimal import Decimal
from typing import Any

import numpy as np
from PIL import Image

NUMBERS = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()  # noqa: SIM905 - eleven quotes less
)
COLUMNS = {
    **{name: name for name in NUMBERS},
    **{f"ragged_{name}": f"ndarray:{name}" for name in NUMBERS},
    **{f"tensor_{name}": f"ndarray:{name}:2,3" for name in NUMBERS},
    "any_matrix": "ndarray",
    "any_vector": "ndarray",
    "bytes": "bytes",
    "images_jpeg": "list[jpeg]",
    "images_pil": "list[pil]",
    "images_png": "list[png]",
    "int": "int",
    "jpeg": "jpeg",
    "jpeg_array": "jpeg_array",
    "jpegarray": "jpegarray",
    "json": "json",
    "pil": "pil",
    "pkl": "pkl",
    "png": "png",
    "str": "str",
    "str_decimal": "str_decimal",
    "str_float": "str_float",
    "str_int": "str_int",
    "vector": "ndarray:float32:5",
}


def corpus_sample(i: int) -> dict[str, Any]:
    """Return sample ``i``: a value for each of `COLUMNS`."""
    sample: dict[str, Any] = {}
    for name in NUMBERS:
        sample[name] = np.dtype(name).type(i / 4 if name.startswith("float") else i + 1)
        sample[f"ragged_{name}"] = (np.arange(i % 5 + 1) + i).astype(name)
        sample[f"tensor_{name}"] = (np.arange(6) + i).reshape(2, 3).astype(name)
    return sample | {
        "any_matrix": np.linspace(-1, i, (i % 3 + 1) * (i * 20 + 1)).reshape(i % 3 + 1, -1),
        "any_vector": np.arange(i * 50 + 1, dtype=np.int32),
        "bytes": bytes(range(i * 7 % 250)),
        "images_jpeg": [_image(i)] * (i % 2),
        "images_pil": [_image(i), _image(i + 1)][: i % 3],
        "images_png": [_image(i)],
        "int": -i,
        "jpeg": _image(i),
        "jpeg_array": [_jpeg(i)] * (i % 3 + 1),
        "jpegarray": [_jpeg(i)],
        "json": {"nested": [i, None, "ä"]},
        "pil": _image(i),
        "pkl": {"x": i},
        "png": _image(i),
        "str": "s" * i + "äöü€𝄞",
        "str_decimal": Decimal(i) / Decimal(8),
        "str_float": math.inf if i == 3 else i / 7,
        "str_int": 10 ** (i * 5 % 40) + i,
        "vector": np.arange(5, dtype=np.float32) * i,
    }


TEXT_COLUMNS = {"number": "int", "ratio": "float", "text": "str", "a key": "str"}
"""Columns of shards of lines, which have three encodings."""


def text_sample(i: int) -> dict[str, Any]:
    """Return a sample of `TEXT_COLUMNS`; none holds a separator of the formats."""
    return {
        "number": (-1) ** i * 10**i,
        "ratio": [0.1, -0.0, 1e300, 5e-324, float("inf"), float("nan")][i % 6] * (1 + i // 6),
        "text": ["", "plain", 'quotes "', "Blüte 🌷", "\\n back\\slash", " spaces "][i % 6],
        "a key": f"sample {i}",
    }


def rendered(value: Any) -> Any:  # noqa: PLR0911 - one case a kind of value
    """Return JSON that is equal where two values are."""
    match value:
        case np.ndarray():
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return ["array", value.dtype.name, list(value.shape), digest[:16]]
        case np.generic():
            return rendered(value.item())
        case Image.Image():
            # Pixels of a JPEG depend on the library that decodes it, by one or two.
            digest = hashlib.sha256(value.tobytes()).hexdigest()[:16]
            return ["image", value.mode, *value.size, "" if value.format == "JPEG" else digest]
        case bytes():
            return ["bytes", value.hex()]
        case Decimal() | float():
            return [type(value).__name__, str(value)]
        case list():
            return [rendered(item) for item in value]
        case dict():
            return {key: rendered(item) for key, item in value.items()}
        case _:
            return value


def _image(i: int) -> Image.Image:
    pixels = np.arange((4 + i % 3) * 5 * 3, dtype=np.uint8) * 3 + i
    return Image.fromarray(pixels.reshape(4 + i % 3, 5, 3))


def _jpeg(i: int) -> bytes:
    target = io.BytesIO()
    _image(i).save(target, format="JPEG")
    return target.getvalue()
