"""What Arrow has no type for is stored as bits, with a note of what they mean that goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.server.layout.wire_columns import split_schema
from headrace.storage import open_dataset
from support.shards import write_shards_of

_BFLOAT16 = {"headrace.format": "bfloat16"}
_ITEM = pa.field("item", pa.uint16(), nullable=False)


def _bfloat16(values: list[float]) -> list[int]:
    """Return the upper halves of float32, which these values fill."""
    bits: list[int] = (np.array(values, "<f4").view("<u4") >> 16).tolist()
    return bits


def test_formats_survive_and_reach_the_wire(tmp_path: Path) -> None:
    """bfloat16 in scalars, tensors and ragged lists, and images: bits and meaning come back."""
    schema = pa.schema(
        [
            pa.field("scale", pa.uint16(), metadata=_BFLOAT16),
            pa.field("weights", pa.list_(_ITEM, 2), metadata=_BFLOAT16),
            pa.field("auto", pa.list_(_ITEM), metadata={"headrace.shape": "auto", **_BFLOAT16}),
            pa.field("ragged", pa.list_(_ITEM), metadata=_BFLOAT16),
            pa.field("image", pa.binary(), metadata={"headrace.format": "jpeg"}),
            pa.field("plain", pa.uint16()),
        ]
    )
    samples = [
        {
            "scale": _bfloat16([number / 2])[0],
            "weights": _bfloat16([1.5, -number]),
            "auto": _bfloat16([0.25, number, 3.0]),
            "ragged": _bfloat16([float(item) for item in range(number % 4)]),
            "image": b"\xff\xd8" + bytes(number),
            "plain": number,
        }
        for number in range(50)
    ]
    batch = pa.RecordBatch.from_pylist(samples, schema=schema)
    write_shards_of(str(tmp_path), [batch])

    with open_dataset(str(tmp_path)) as dataset:
        found = dataset.read_block(0)
        columns, refused = split_schema(dataset.schema)

    assert samples[: found.num_rows] == found.to_pylist()
    assert not refused
    assert {
        "scale": "bfloat16",
        "weights": "bfloat16",
        "auto": "bfloat16",
        "ragged": "bfloat16",
        "image": "jpeg",
        "plain": "",
    } == {column.name: column.logical_type for column in columns}
    values = np.array(found["scale"].to_pylist(), "<u4") << 16
    assert [number / 2 for number in range(found.num_rows)] == values.view("<f4").tolist()
