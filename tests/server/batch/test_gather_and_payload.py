"""Tests of blocks, gathering and payloads: any Arrow values arrive as they were."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import ShardCorruptError, UnsupportedColumnError
from headrace.payload import layout_of
from headrace.server.batch.batch_writer import BatchWriter
from headrace.server.batch.compiled_writer import CompiledWriter
from headrace.server.batch.targets import WirePlaces
from headrace.server.cache.decode import DecodedBlock
from headrace.server.cache.gather import BlockRows, StagedRows, gather_spans
from headrace.server.cache.memory.arena import Memory, map_memory
from headrace.server.kernels.loader import LOOPS
from headrace.server.layout.block_layout import TAKE_BYTES, BlockLayout, Projection, block_layout
from headrace.server.layout.wire_columns import split_schema, wire_column
from headrace.v1 import shard_service_pb2 as pb
from support.plain_rows import ReadSamples
from support.plain_writer import PlainWriter
from support.served import decode, joined


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    """The compiled loops."""
    return LOOPS


_TYPES: st.SearchStrategy[pa.DataType] = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.uint16(),
        pa.int64(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.binary(3),
        pa.list_(pa.int16()),
        pa.list_(pa.bool_()),
        pa.large_list(pa.float64()),
        pa.list_(pa.uint8(), 5),
        pa.list_(pa.float32(), 20),
        pa.list_(pa.float32(), 200),
        pa.list_(pa.list_(pa.int32(), 2), 3),
        pa.list_(pa.uint8(), TAKE_BYTES + 3),
    ]
)


def _value(arrow_type: pa.DataType, seed: int) -> object:
    """Make some value of a type."""
    if isinstance(arrow_type, pa.FixedSizeListType):
        return [_value(arrow_type.value_type, seed + k) for k in range(arrow_type.list_size)]
    if isinstance(arrow_type, pa.ListType | pa.LargeListType):
        return [_value(arrow_type.value_type, seed + k) for k in range(seed % 4)]
    return next(value for matches, value in _SCALARS if matches(arrow_type))(seed)


_SCALARS: list[tuple[Callable[[pa.DataType], bool], Callable[[int], object]]] = [
    (pat.is_boolean, lambda seed: seed % 2 == 0),
    (pat.is_floating, lambda seed: float(seed % 1000) / 4),
    (pat.is_fixed_size_binary, lambda seed: seed.to_bytes(3, "big")),
    (pat.is_string, lambda seed: f"é{seed}" * (seed % 3)),
    (pat.is_large_string, lambda seed: f"{seed}ü" * (seed % 4)),
    (pat.is_binary, lambda seed: bytes([seed % 256]) * (seed % 5)),
    (pat.is_large_binary, lambda seed: bytes([seed % 256]) * (seed % 6)),
    (pat.is_integer, lambda seed: seed % 100),
]


@st.composite
def _tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 12))
    columns, fields = [], []
    for index in range(draw(st.integers(1, 5))):
        arrow_type = draw(_TYPES)
        nulls = draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count))
        seed = draw(st.integers(0, 5000))
        values = [
            None if nulls and nulls[row] else _value(arrow_type, seed + row) for row in range(count)
        ]
        # Slices have offsets inside bytes and buffers, where readers go wrong.
        lead = draw(st.integers(0, 9))
        padded = pa.array([_value(arrow_type, 1)] * lead + values, arrow_type)
        columns.append(padded.slice(lead))
        fields.append(pa.field(f"c{index}", arrow_type, nullable=nulls is not None))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _blocks(table: pa.Table, cut: int, memory: Memory) -> tuple[BlockLayout, list[tuple[int, ...]]]:
    """Write a table as two blocks, at places without any alignment of their rows."""
    columns, refused = split_schema(table.schema)
    assert not refused
    layout = block_layout(columns)
    bases, start = [], 64
    for part in (table.slice(0, cut), table.slice(cut)):
        batch = part.combine_chunks().to_batches()
        block = DecodedBlock(layout, batch[0] if batch else _empty(table.schema))
        bases.append(block.write(memory, start))
        start += block.size + -block.size % 64 + 64
    assert start <= memory.array.size
    return layout, bases


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


@settings(max_examples=150, deadline=None)
@given(table=_tables(), draw=st.data())
def test_any_table_arrives_as_it_was(table: pa.Table, draw: st.DataObject) -> None:
    """Gathered in any order, from place or staged, cut anywhere, compiled or not: the same."""
    count = table.num_rows
    cut = draw.draw(st.integers(0, count))
    # Whole kilobytes are hashed by compiled code, others by the library.
    cut_bytes = draw.draw(st.integers(50, 5000) | st.sampled_from([1024, 2048, 4096]))
    wanted = draw.draw(st.lists(st.integers(0, count - 1), max_size=20))
    memory = map_memory(1 << 20)
    layout, bases = _blocks(table, cut, memory)
    ids = np.array(wanted, np.int64)
    blocks = (ids >= cut).astype(np.int64)
    offsets = ids - cut * blocks
    names = draw.draw(st.permutations(table.column_names))
    projection = Projection(layout, tuple(layout.by_name[name] for name in names))
    columns = [layout.by_name[name].column for name in names]
    by_part = np.ascontiguousarray(np.array(bases, np.int64).T)
    slot_of = np.arange(2, dtype=np.int32)

    def rows_at(places: NDArray[np.intp]) -> BlockRows:
        return BlockRows(
            layout,
            memory,
            slot_of=slot_of,
            bases=by_part,
            blocks=blocks[places],
            offsets=offsets[places],
        )

    placed = rows_at(np.arange(ids.size))
    staged = StagedRows(projection, ids.size, max_bytes=1 << 20)
    for block in (1, 0):
        places = np.flatnonzero(blocks == block)
        staged.add(places, rows_at(places))

    plain = PlainWriter(columns, projection)
    compiled = CompiledWriter(columns, projection.layout)
    in_one = staged.in_one_block()
    payloads = [
        _made(writer, rows, ids, limit)
        for writer, rows in (
            (plain, placed),
            (plain, in_one),
            (compiled, placed),
            (compiled, in_one),
        )
        for limit in (1 << 20, cut_bytes)
    ]

    assert payloads[:1] * 8 == payloads
    header = payloads[0][0]
    assert header.payload_xxh3 == xxhash.xxh3_64_intdigest(payloads[0][1])
    # Not Table.take: it reads nested fixed-size lists of a slice from the wrong place.
    everything = table.to_pydict()
    expected = {name: [everything[name][row] for row in wanted] for name in names}
    assert expected == decode([column.to_proto() for column in columns], header, payloads[0][1])


def _made(
    writer: BatchWriter, rows: BlockRows, ids: NDArray[np.int64], limit: int
) -> tuple[pb.BatchHeader, bytes]:
    """Return what a batch says, and its payload."""
    measured = writer.measure(rows, ReadSamples(ids), 1)
    header = pb.BatchHeader(
        sample_count=ids.size,
        buffer_bytes=measured.buffer_bytes[0],
        payload_bytes=measured.sizes[0],
    )
    places = WirePlaces(limit)
    places.add(header, measured.buffer_bytes[0])
    writer.write(rows, ids, measured, places.find())
    made, payload = joined([message for message, _ in places.finish()])
    # Of whole messages alone, and meant for nobody.
    made.ClearField("head_padding")
    return made, payload


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(0, 300), max_size=40), scale=st.sampled_from([1, 30]))
def test_spans_are_copied_back_to_back(
    compiled: ModuleType, lengths: list[int], scale: int
) -> None:
    """Spans of any length, in any order, overlapping or not, come out one after the other."""
    memory = Memory(np.random.default_rng(1).integers(0, 256, 20_000, dtype=np.uint8))
    sizes = np.array(lengths, np.int64) * scale
    starts = np.random.default_rng(2).integers(0, 11_000, sizes.size)
    out = np.empty(int(sizes.sum()), np.uint8)
    same = np.empty_like(out)

    gather_spans(memory, starts, sizes, out)
    compiled.copy_spans(memory.array, starts, sizes, same)

    pairs = list(zip(starts.tolist(), sizes.tolist(), strict=True))
    wanted = b"".join(bytes(memory.view[b : b + n]) for b, n in pairs)
    assert [wanted] * 2 == [out.tobytes(), same.tobytes()]


def test_payloads_are_laid_out_as_documented() -> None:
    """Golden: three rows of a nullable string and an int16 pair."""
    text = wire_column(pa.field("t", pa.string()))
    pair = wire_column(pa.field("p", pa.list_(pa.int16(), 2), nullable=False))

    layout = layout_of([text, pair], 3, [5])

    assert (3, 32, 5, 12) == layout.lengths
    assert (0, 64, 128, 192) == layout.starts
    assert 204 == layout.size


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.list_(pa.int32()),
        pa.large_list(pa.float64()),
        pa.list_(pa.int32(), 2),
        pa.list_(pa.list_(pa.int32(), 2), 1),
    ],
)
def test_a_null_inside_a_list_is_refused(arrow_type: pa.DataType) -> None:
    """An element that is null has no form on the wire; the column is named."""
    value: list[object] = [1, None]
    if pa.types.is_fixed_size_list(arrow_type) and arrow_type.list_size == 1:
        value = [value]
    array = pa.array([None, value], arrow_type)
    batch = pa.RecordBatch.from_arrays([array], names=["bad"])
    layout = block_layout([wire_column(batch.schema.field(0))])

    with pytest.raises(UnsupportedColumnError, match="'bad' contains a list with a null item"):
        DecodedBlock(layout, batch)


def test_a_null_in_a_column_without_nulls_is_damage() -> None:
    """A block that breaks its schema is refused, not sent with zeros."""
    layout = block_layout([wire_column(pa.field("x", pa.int64(), nullable=False))])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], names=["x"])

    with pytest.raises(ShardCorruptError, match="'x' contains 1 nulls"):
        DecodedBlock(layout, batch)


def test_a_column_that_lacks_is_damage() -> None:
    """A block without one of its dataset's columns is refused."""
    layout = block_layout([wire_column(pa.field("x", pa.int64()))])

    with pytest.raises(ShardCorruptError, match="no column 'x'"):
        DecodedBlock(layout, pa.RecordBatch.from_arrays([pa.array([1])], names=["y"]))
