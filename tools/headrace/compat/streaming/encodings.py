"""Python objects and their bytes, by the names that MosaicML Streaming gives encodings.

Source: the bytes are those of mosaicml-streaming 0.13.0; docs/mds.md describes them.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from decimal import Decimal
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

UNSAFE = "pkl"
_WORD = np.dtype("<u4")
_INT = np.dtype("<i8")
_ARRAYS = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_NUMBERS = frozenset(_ARRAYS.values())
_ARRAY_CODES = {name: code for code, name in _ARRAYS.items()}
_MOST_AXES = 63

Encoder: TypeAlias = Callable[[Any], bytes]
Decoder: TypeAlias = Callable[[Any], Any]


def encoded_size(encoding: str) -> int | None:
    """Return the bytes of each value of an encoding; None if they differ.

    Raises:
        ValueError: There is no such encoding.
    """
    if encoding == "int":
        return _INT.itemsize
    if encoding in _NUMBERS:
        return np.dtype(encoding).itemsize
    if encoding.partition(":")[0] == "ndarray":
        dtype, shape = _array_facts(encoding)
        return None if shape is None else int(np.prod(shape)) * np.dtype(dtype).itemsize
    if encoding not in _ENCODERS:
        known = ", ".join(["int", *sorted(_NUMBERS), "ndarray[:type[:shape]]", *_ENCODERS])
        raise ValueError(f"{encoding!r} is not a supported encoding; expected one of {known}")
    return None


def encoder_of(encoding: str) -> Encoder:
    """Return the function that makes the bytes of a value.

    Raises:
        ValueError: There is no such encoding.
    """
    encoded_size(encoding)
    if encoding in _NUMBERS:
        return lambda value: np.dtype(encoding).type(value).tobytes()
    if encoding.partition(":")[0] == "ndarray":
        dtype, shape = _array_facts(encoding)
        return lambda value: _array_bytes(value, dtype, shape)
    return _int_bytes if encoding == "int" else _ENCODERS[encoding]


def decoder_of(encoding: str) -> Decoder | None:
    """Return the function that makes the object of what headrace stores; None to keep it as it is.

    Args:
        encoding: An encoding, or empty for a column that never was MosaicML's.
    """
    return _DECODERS.get(encoding)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise AttributeError(  # noqa: TRY004 - as MosaicML's
            f"a value is of type {type(value).__name__}; expected {kind.__name__}"
        )
    return value


def _int_bytes(value: Any) -> bytes:
    return _INT.type(_checked(value, int)).tobytes()


def _array_facts(encoding: str) -> tuple[str, tuple[int, ...] | None]:
    _, _, rest = encoding.partition(":")
    dtype, _, axes = rest.partition(":")
    if dtype and dtype not in _NUMBERS:
        raise ValueError(
            f"{encoding!r} is not a supported encoding; {dtype!r} is no type of arrays"
        )
    return dtype, tuple(int(axis) for axis in axes.split(",")) if axes else None


def _array_bytes(value: NDArray[Any], dtype: str, shape: tuple[int, ...] | None) -> bytes:
    name = value.dtype.name
    if name not in _ARRAY_CODES or (dtype and name != dtype):
        raise ValueError(f"Wrong dtype: expected {dtype or 'numbers'}, got {name}.")
    if not value.size or not value.ndim or value.ndim > _MOST_AXES:
        raise ValueError(
            f"an array of shape {value.shape} cannot be stored; expected 1 to {_MOST_AXES} axes, "
            "none of length 0"
        )
    parts = [] if dtype else [bytes([_ARRAY_CODES[name]])]
    if shape is None:
        axes = np.array(value.shape, np.int64)
        width = next(at for at in range(4) if int(axes.max()) < 1 << (8 << at))
        parts += [bytes([value.ndim << 2 | width]), axes.astype(f"<u{1 << width}").tobytes()]
    elif value.shape != shape:
        raise ValueError(f"Wrong shape: expected {shape}, got {value.shape}.")
    return b"".join([*parts, value.astype(value.dtype.newbyteorder("<")).tobytes()])


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value.tolist() if isinstance(value, np.ndarray) else value).encode()


def _image_bytes(form: str) -> Encoder:
    def encode(image: Image) -> bytes:
        name = getattr(image, "filename", None)
        if form == "JPEG" and image.format == form and name:
            try:
                with open(name, "rb") as file:  # noqa: PTH123 - Pillow may give bytes
                    return file.read()
            except FileNotFoundError:
                pass
        out = BytesIO()
        image.save(out, format=form)
        return out.getvalue()

    return encode


def _pixels(image: Image) -> bytes:
    mode = image.mode.encode()
    return np.array([*image.size, len(mode)], _WORD).tobytes() + mode + image.tobytes()


def _joined(parts: Iterable[bytes], *head: int) -> bytes:
    kept = list(parts)
    words = np.array([*head, len(kept), *map(len, kept)], _WORD)
    return b"".join([words.tobytes(), *kept])


def _opened(content: bytes) -> Image:
    from PIL import Image  # noqa: PLC0415 - not every dataset has images

    return Image.open(BytesIO(content))


def _from_pixels(content: bytes) -> Image:
    from PIL import Image  # noqa: PLC0415 - not every dataset has images

    width, height, length = np.frombuffer(content, _WORD, 3).tolist()
    start = 3 * _WORD.itemsize
    mode = content[start : start + length].decode()
    return Image.frombytes(mode, (width, height), content[start + length :])


def _split(content: bytes, *, head: int) -> list[bytes]:
    (count,) = np.frombuffer(content, _WORD, 1, head * _WORD.itemsize).tolist()
    start = (head + 1) * _WORD.itemsize
    sizes = np.frombuffer(content, _WORD, count, start)
    edges = start + count * _WORD.itemsize + np.cumsum([0, *sizes.tolist()])
    return [content[low:high] for low, high in pairwise(edges)]


def _list_encoder(one: Encoder) -> Encoder:
    return lambda values: _joined((one(value) for value in values), 0)


def _list_decoder(one: Decoder) -> Decoder:
    return lambda content: [one(part) for part in _split(content, head=1)]


def _text_encoder(kind: type) -> Encoder:
    return lambda value: str(_checked(value, kind)).encode()


_JPEG, _PNG = _image_bytes("JPEG"), _image_bytes("PNG")
_ENCODERS: dict[str, Encoder] = {
    "bytes": lambda value: bytes(_checked(value, bytes)),
    "str": _text_encoder(str),
    "str_int": _text_encoder(int),
    "str_float": _text_encoder(float),
    "str_decimal": _text_encoder(Decimal),
    "json": _json_bytes,
    "pkl": pickle.dumps,
    "pil": _pixels,
    "jpeg": _JPEG,
    "png": _PNG,
    "list[pil]": _list_encoder(_pixels),
    "list[jpeg]": _list_encoder(_JPEG),
    "list[png]": _list_encoder(_PNG),
    "jpeg_array": lambda values: _joined(map(bytes, values)),
    "jpegarray": lambda values: _joined(map(bytes, values)),
}
_DECODERS: dict[str, Decoder] = {
    "int": int,
    "str_int": int,
    "str_float": float,
    "float": float,  # of shards of lines
    "str_decimal": Decimal,
    "json": json.loads,
    "pkl": pickle.loads,
    "pil": _from_pixels,
    "jpeg": _opened,
    "png": _opened,
    "list[pil]": _list_decoder(_from_pixels),
    "list[jpeg]": _list_decoder(_opened),
    "list[png]": _list_decoder(_opened),
    "jpeg_array": lambda content: [_opened(part) for part in _split(content, head=0)],
    "jpegarray": lambda content: [_opened(part) for part in _split(content, head=0)],
}
