"""Golden fingerprints: changing one is changing the format."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.storage import BLOCK_DTYPE, schema_texts
from headrace.storage.shard.fingerprint import fingerprint_of, page_digest

_BLOCKS = np.array(
    [(8, 100, 3, 72, 0x0123456789ABCDEF), (112, 90, 2, 48, 0xFEDCBA9876543210)], BLOCK_DTYPE
)


def test_page_digest_is_golden() -> None:
    """Two blocks have this digest, which follows from samples, raw bytes and checksums alone."""
    moved = _BLOCKS.copy()
    moved["offset"] += 4096
    by_hand = hashlib.blake2b(
        bytes.fromhex("0300000000000000 4800000000000000 efcdab8967452301")
        + bytes.fromhex("0200000000000000 3000000000000000 1032547698badcfe"),
        digest_size=16,
    )

    assert page_digest(_BLOCKS).hex() == "fb014509a1ff13e6a43a1c2d05cb7d29"
    assert page_digest(moved).hex() == "fb014509a1ff13e6a43a1c2d05cb7d29"
    assert by_hand.hexdigest() == "fb014509a1ff13e6a43a1c2d05cb7d29"


@pytest.mark.parametrize(
    ("block_samples", "fingerprint"),
    [
        (np.array([3]), "587ec8f6e06eaf70df77b19a22ce7006"),
        (np.array([0]), "98a1bcdaf5ea0c8e267ef4ae70ae407d"),
    ],
    ids=["even blocks", "blocks that differ"],
)
def test_dataset_fingerprint_is_golden(block_samples: NDArray[np.int64], fingerprint: str) -> None:
    """A small dataset has this fingerprint for ever."""
    x: pa.Field[pa.DataType] = pa.field("x", pa.int64(), nullable=False)
    schema = pa.schema([x, pa.field("s", pa.string())])
    found = fingerprint_of(
        served=schema,
        stored=schema,
        sample_counts=np.array([5]),
        raw_bytes=np.array([120]),
        block_counts=np.array([2]),
        block_samples=block_samples,
        page_digests=[page_digest(_BLOCKS)],
    )

    assert found == fingerprint


def test_schema_texts_are_golden() -> None:
    """Each storable type has its text, which no library writes."""
    item = pa.field("item", pa.float32(), nullable=False)
    types: dict[str, pa.DataType] = {
        "bool": pa.bool_(),
        "int8": pa.int8(),
        "uint64": pa.uint64(),
        "float16": pa.float16(),
        "string": pa.string(),
        "large_binary": pa.large_binary(),
        "fixed_size_binary[3]": pa.binary(3),
        "date32": pa.date32(),
        "time64[us]": pa.time64("us"),
        "timestamp[ms]": pa.timestamp("ms"),
        "timestamp[us,Europe/Berlin]": pa.timestamp("us", "Europe/Berlin"),
        "duration[s]": pa.duration("s"),
        "decimal128(20,3)": pa.decimal128(20, 3),
        "list<int32>": pa.list_(pa.int32()),
        "large_list<float32!>": pa.large_list(item),
        "fixed_size_list<float32!>[4]": pa.list_(item, 4),
        "tensor<int16,2x3>": pa.fixed_shape_tensor(pa.int16(), (2, 3)),
        'struct<"a":int8,"b\\"c":string>': pa.struct([("a", pa.int8()), ('b"c', pa.string())]),
        "map<string,int64>": pa.map_(pa.string(), pa.int64()),
    }
    columns: dict[str, pa.DataType] = dict(
        zip(map(str, range(len(types))), types.values(), strict=True)
    )
    schema = pa.schema(columns)

    assert [text for _, text, _ in schema_texts(schema)] == list(types)
