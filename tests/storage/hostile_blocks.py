"""Blocks that lie, made by changing single fields of an honest one.

Each `HostileBlock` has a checksum that agrees with its bytes, as someone would make it who can
write both the shard and the manifest. Run as a program, this module decodes every one of them
with little memory to be had and prints what came of it.
"""

from __future__ import annotations

import resource
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.storage import BlockPlace, sample_bytes
from headrace.storage.shard.arrow_message import _offset_at, _Table
from headrace.storage.shard.block import checksum_of, decode_block
from headrace.storage.shard.decoder import BlockDecoder

Codec = Literal["lz4", "zstd"]
_TYPES: dict[str, pa.DataType] = {
    "number": pa.int64(),
    "text": pa.string(),
    "words": pa.list_(pa.string()),
    "point": pa.struct([("label", pa.string())]),
}
_SCHEMA = pa.schema(_TYPES)
_BUFFER_BYTES = 16  # offset and length
_METADATA_START = 8  # behind the continuation mark and the length
_TEXT_BUFFERS = {"number": 1, "text offsets": 3, "text": 4, "words": 9, "label": 13}


@dataclass(frozen=True, slots=True)
class HostileBlock:
    """A stored message and what its manifest says of it."""

    stored: bytes
    schema: pa.Schema
    sample_count: int
    raw_bytes: int

    def decode(self) -> pa.RecordBatch:
        """Decode it as a dataset does."""
        place = BlockPlace(
            shard="shards/evil.arrow",
            block=7,
            offset=4096,
            stored_bytes=len(self.stored),
            sample_count=self.sample_count,
            raw_bytes=self.raw_bytes,
            checksum=checksum_of(self.stored),
        )
        return decode_block(self.stored, place, decoder=BlockDecoder(self.schema))


def honest_batch() -> pa.RecordBatch:
    """Return what the hostile blocks were before."""
    count = 100
    return pa.RecordBatch.from_pydict(
        {
            "number": list(range(count)),
            "text": [f"texttext {index}" for index in range(count)],
            "words": [["word"] * 3] * count,
            "point": [{"label": "labellabel"}] * count,
        },
        schema=_SCHEMA,
    )


def message_of(batch: pa.RecordBatch, *, codec: Codec | None) -> bytearray:
    """Return the stored message of a batch."""
    options = pa.ipc.IpcWriteOptions(compression=codec)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()[8 + batch.schema.serialize().size :]
    message = pa.ipc.read_message(content)
    assert message.body is not None
    metadata = _METADATA_START + struct.unpack_from("<i", content, 4)[0]
    return bytearray(content[: metadata + message.body.size])


class Fields:
    """Where the fields of a message lie in it, to be written over."""

    def __init__(self, stored: bytearray) -> None:
        self.stored = stored
        self._metadata = memoryview(stored)[_METADATA_START:]
        self.message = _Table(self._metadata, _offset_at(self._metadata, 0))
        self.batch = self.message.table(2)
        self.body_start: int = _METADATA_START + struct.unpack_from("<i", stored, 4)[0]

    def write(self, place: int | None, form: str, value: int) -> None:
        """Write a number over a place of the metadata."""
        assert place is not None
        struct.pack_into(form, self.stored, _METADATA_START + place, value)

    def buffer_place(self, index: int) -> int:
        """Return where the metadata has offset and length of a buffer."""
        place = self.batch.place(2)
        assert place is not None
        return _offset_at(self._metadata, place) + 4 + _BUFFER_BYTES * index

    def buffer_start(self, index: int) -> int:
        """Return where the buffer itself begins."""
        return self.body_start + self.batch.pairs(2)[2 * index]


def _changed(
    change: Callable[[Fields], None], *, codec: Codec | None = "lz4"
) -> Callable[[], HostileBlock]:
    def make() -> HostileBlock:
        batch = honest_batch()
        stored = message_of(batch, codec=codec)
        change(Fields(stored))
        return HostileBlock(
            stored=bytes(stored),
            schema=batch.schema,
            sample_count=batch.num_rows,
            raw_bytes=int(sample_bytes(batch).sum()),
        )

    return make


def _prefix(value: int, *buffers: int) -> Callable[[Fields], None]:
    """State another length after decompression."""

    def change(fields: Fields) -> None:
        for index in buffers or (_TEXT_BUFFERS["number"],):
            struct.pack_into("<q", fields.stored, fields.buffer_start(index), value)

    return change


def _buffer(offset: int | None, length: int | None) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        place = fields.buffer_place(_TEXT_BUFFERS["number"])
        if offset is not None:
            fields.write(place, "<q", offset)
        if length is not None:
            fields.write(place + 8, "<q", length)

    return change


def _overlapping(fields: Fields) -> None:
    """Let all buffers be the same bytes."""
    pairs = fields.batch.pairs(2)
    longest = 2 * _TEXT_BUFFERS["number"]
    for index in range(len(pairs) // 2):
        place = fields.buffer_place(index)
        fields.write(place, "<q", pairs[longest])
        fields.write(place + 8, "<q", pairs[longest + 1])


def _content(name: str, found: bytes) -> Callable[[Fields], None]:
    """Write over the first bytes of a buffer that is not compressed."""

    def change(fields: Fields) -> None:
        start = fields.buffer_start(_TEXT_BUFFERS[name])
        fields.stored[start : start + len(found)] = found

    return change


def _noise(fields: Fields) -> None:
    size = fields.body_start - _METADATA_START
    fields.stored[_METADATA_START : fields.body_start] = bytes(at * 37 % 256 for at in range(size))


def _node_length(value: int) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        place = fields.batch.place(1)
        assert place is not None
        fields.write(_offset_at(memoryview(fields.stored)[8:], place) + 4, "<q", value)

    return change


def _codec(value: int) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        # ZSTD, so that the field is written: the codec 0 is left out.
        fields.write(fields.batch.table(3).place(0), "<b", value)

    return change


def _other_message(make: Callable[[], bytes]) -> Callable[[], HostileBlock]:
    return lambda: HostileBlock(make(), _SCHEMA, sample_count=100, raw_bytes=1000)


def _schema_message() -> bytes:
    return _SCHEMA.serialize().to_pybytes()


def _dictionary_message() -> bytes:
    batch = pa.RecordBatch.from_pydict({"x": pa.array(["a", "b"] * 50).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()[batch.schema.serialize().size :]


def _bomb(codec: Codec) -> Callable[[], HostileBlock]:
    """Make a real one: 1 GiB of zeros that the manifest calls 1,000 bytes."""

    def make() -> HostileBlock:
        zeros = pa.array(np.zeros(1 << 20, np.int64))
        batch = pa.RecordBatch.from_arrays([zeros] * 128, names=[f"x{i}" for i in range(128)])
        stored = bytes(message_of(batch, codec=codec))
        return HostileBlock(stored, batch.schema, sample_count=1 << 20, raw_bytes=1000)

    return make


def _many_rows() -> HostileBlock:
    batch = pa.RecordBatch.from_pydict({"x": pa.array([1], pa.int64())})
    stored = message_of(batch, codec=None)
    fields = Fields(stored)
    fields.write(fields.batch.place(0), "<q", 1 << 40)
    _node_length(1 << 40)(fields)
    return HostileBlock(bytes(stored), batch.schema, sample_count=1, raw_bytes=8)


_TERABYTE = 1 << 40
HOSTILE_BLOCKS: dict[str, tuple[Callable[[], HostileBlock], str]] = {
    "34 bomb: a buffer of a terabyte": (_changed(_prefix(_TERABYTE)), "after decompression"),
    "35 bomb: lengths whose sum wraps around": (
        _changed(_prefix(2**62, 1, 3, 4, 8)),
        "after decompression",
    ),
    "36 bomb: 1 GiB of zeros in LZ4": (_bomb("lz4"), "after decompression"),
    "37 bomb: 1 GiB of zeros in ZSTD": (_bomb("zstd"), "after decompression"),
    "38 a negative length after decompression": (_changed(_prefix(-2)), "states -2 bytes"),
    "39 a length after decompression that is not true": (
        _changed(_prefix(801)),
        "not a record batch",
    ),
    "40 a compressed buffer of 3 bytes": (_changed(_buffer(None, 3)), "only 3 bytes"),
    "41 a buffer past the end": (_changed(_buffer(1 << 30, None)), "of a body of"),
    "42 a buffer before the start": (_changed(_buffer(-8, None)), "of a body of"),
    "43 a buffer of negative length": (_changed(_buffer(None, -1)), "of a body of"),
    "44 a buffer whose end wraps around": (_changed(_buffer(8, 2**63 - 1)), "of a body of"),
    "45 buffers over one another": (_changed(_overlapping), "not a record batch"),
    "46 metadata longer than the block": (
        _changed(lambda fields: struct.pack_into("<i", fields.stored, 4, 2**31 - 1)),
        "not a record batch",
    ),
    "47 metadata of negative length": (
        _changed(lambda fields: struct.pack_into("<i", fields.stored, 4, -5)),
        "not a record batch",
    ),
    "48 a body longer than the block": (
        _changed(lambda fields: fields.write(fields.message.place(3), "<q", _TERABYTE)),
        "not a record batch",
    ),
    "49 a body of negative length": (
        _changed(lambda fields: fields.write(fields.message.place(3), "<q", -64)),
        "not a record batch",
    ),
    "50 a metadata version to come": (
        _changed(lambda fields: fields.write(fields.message.place(0), "<h", 9)),
        "not a record batch",
    ),
    "51 a codec to come": (_changed(_codec(9), codec="zstd"), "not a record batch"),
    "52 a schema where samples should be": (_other_message(_schema_message), "not a record batch"),
    "53 a dictionary where samples should be": (
        _other_message(_dictionary_message),
        "not a record batch",
    ),
    "54 a trillion samples": (_many_rows, "not a record batch"),
    "55 more values than samples": (_changed(_node_length(101)), "not a record batch"),
    "56 text that is not UTF-8": (
        _changed(_content("text", b"\xff\xfe"), codec=None),
        "UTF8",
    ),
    "57 text cut within a character": (_changed(_content("text", b"\xc3"), codec=None), "UTF8"),
    "58 text in a list that is not UTF-8": (
        _changed(_content("words", b"\xed\xa0\x80"), codec=None),
        "UTF8",
    ),
    "59 text in a struct that is not UTF-8": (
        _changed(_content("label", b"\xc0\xaf"), codec=None),
        "UTF8",
    ),
    "60 text that begins before its buffer": (
        _changed(_content("text offsets", struct.pack("<i", -9)), codec=None),
        "not a record batch",
    ),
    "61 text that ends before it begins": (
        _changed(_content("text offsets", struct.pack("<ii", 0, 500)), codec=None),
        "not a record batch",
    ),
    "62 text past the end of its buffer": (
        _changed(_content("text offsets", struct.pack("<101i", *range(0, 10100, 100))), codec=None),
        "not a record batch",
    ),
    "63 metadata of noise": (
        _changed(_noise),
        "not a record batch",
    ),
    "64 no bytes": (_other_message(lambda: b""), "not a record batch"),
    "65 zeros": (_other_message(lambda: bytes(1000)), "not a record batch"),
    "66 ones": (_other_message(lambda: b"\xff" * 1000), "not a record batch"),
}


def main() -> None:
    """Decode all of them with 300 MiB more than the process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    blocks = {name: make() for name, (make, _) in HOSTILE_BLOCKS.items() if "GiB" not in name}
    limit = pages * resource.getpagesize() + (300 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name, block in blocks.items():
        try:
            block.decode()
        except HeadraceError as error:
            sys.stdout.write(f"{name}: {type(error).__name__}\n")


if __name__ == "__main__":
    main()
