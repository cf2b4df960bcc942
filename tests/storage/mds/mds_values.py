"""What headrace reads of an MDS dataset, as values that can be compared with Mosaic's."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from headrace.storage import OpenDataset
from headrace.storage.mds import ENCODING_KEY, FORMAT_KEY
from storage.mds.mds_corpus import rendered


def rendered_samples(dataset: OpenDataset) -> list[dict[str, Any]]:
    """Return all samples in order, as `rendered` has them."""
    return [
        rendered(sample)
        for block in range(dataset.block_count)
        for sample in _samples(dataset.read_block(block))
    ]


def table_of(dataset: OpenDataset) -> pa.Table:
    """Return all samples in order."""
    blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return pa.Table.from_batches(blocks, dataset.schema)


def _samples(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    batch.validate(full=True)
    columns = {
        field.name: _values(field, batch.column(at)) for at, field in enumerate(batch.schema)
    }
    for i in range(batch.num_rows):
        yield {name: values[i] for name, values in columns.items()}


def _values(field: pa.Field[Any], array: pa.Array[Any]) -> list[Any]:
    metadata = field.metadata or {}
    if isinstance(array, pa.FixedShapeTensorArray):
        return list(array.to_numpy_ndarray())
    if isinstance(array, pa.StructArray):
        item = field.type.field(0).type.value_type.to_pandas_dtype()
        data, shapes = (array.field(at).to_pylist() for at in range(2))
        return [
            np.array(value, item).reshape(shape) for value, shape in zip(data, shapes, strict=True)
        ]
    if hasattr(field.type, "value_type"):
        item = field.type.value_type.to_pandas_dtype()
        return [np.array(value, item) for value in array.to_pylist()]
    decode = _TEXTS.get(metadata.get(ENCODING_KEY)) or _FORMATS.get(metadata.get(FORMAT_KEY))
    values: list[Any] = array.to_pylist()
    return values if decode is None else [decode(value) for value in values]


def _image(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def _raw_image(content: bytes) -> Image.Image:
    width, height, mode_bytes = struct.unpack_from("<3I", content)
    mode = content[12 : 12 + mode_bytes].decode()
    return Image.frombytes(mode, (width, height), content[12 + mode_bytes :])


def _list_of(decode: Callable[[bytes], Image.Image], head: int) -> Callable[[bytes], Any]:
    def images(content: bytes) -> list[Image.Image]:
        (count,) = struct.unpack_from("<I", content, head)
        sizes = struct.unpack_from(f"<{count}I", content, head + 4)
        ends = np.cumsum([head + 4 + 4 * count, *sizes])
        return [decode(content[start:stop]) for start, stop in itertools.pairwise(ends.tolist())]

    return images


_TEXTS: dict[bytes | None, Callable[[Any], Any]] = {
    b"str_decimal": Decimal,
    b"str_int": int,
}
_FORMATS: dict[bytes | None, Callable[[Any], Any]] = {
    b"jpeg": _image,
    b"jpeg_array": _list_of(_image, 0),
    b"json": json.loads,
    b"list[jpeg]": _list_of(_image, 4),
    b"list[pil]": _list_of(_raw_image, 4),
    b"list[png]": _list_of(_image, 4),
    b"pickle": pickle.loads,
    b"pil": _raw_image,
    b"png": _image,
}
