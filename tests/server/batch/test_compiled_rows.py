"""Claims about compiled loops for packed rows: the bytes are NumPy's, and nothing lies unchecked.

How they could give a wrong sample: a piece, a mark or a label in another place than NumPy puts it;
a table that lies about where documents are, and memory that is read or written beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import InternalError, StageFailedError
from headrace.order import Pieces
from headrace.order.packing import Packing, group_row_count, pack_group, take_pieces
from headrace.server.batch.compiled_rows import CompiledRows
from headrace.server.cache.gather import BlockRows
from headrace.server.cache.memory.arena import Memory
from headrace.server.kernels.loader import LOOPS
from headrace.server.layout.block_layout import Projection, block_layout
from headrace.server.layout.packed_columns import PackedColumns, packed_columns
from headrace.server.layout.wire_columns import WireColumn, wire_column
from support.plain_rows import PlainRowWriter, ReadSamples

_TOKENS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()]
_ALIKE = [pa.float16(), pa.float32(), pa.uint64(), pa.int8()]


@dataclass(frozen=True)
class _Rows:
    """Documents in one block.

    Attributes:
        blocks: The block.
        spans: Where documents lie: its packed rows.
    """

    blocks: BlockRows
    spans: NDArray[np.uint8]

    @property
    def memory(self) -> Memory:
        return self.blocks.memory


@dataclass(frozen=True)
class _Case:
    """Documents, packed into rows."""

    packed: PackedColumns
    projection: Projection
    columns: list[WireColumn]
    places: Pieces
    rows: _Rows

    @property
    def read(self) -> ReadSamples:
        """Return the pieces; errors name them by their number."""
        return ReadSamples(np.arange(self.places.sample_ids.size), self.places)

    def documents(self, kind: pa.DataType) -> NDArray[Any]:
        """Return the tokens of the only document, in the memory of the rows."""
        (size,) = set((self.places.table[:, 2] - self.packed.marks).tolist())
        dtype = np.dtype(kind.to_pandas_dtype())
        return self.rows.memory.array[: size * dtype.itemsize].view(dtype)

    def written(self, writer: Any, batch_count: int) -> list[tuple[bytes, bytes]]:
        """Return the head and the payload of each batch, whose hashes are checked."""
        measured = writer.measure(self.rows.blocks, self.read, batch_count)
        memory = [np.full(8 + 64 + size + 8, 0xAA, np.uint8) for size in measured.sizes]
        whole = [
            (b"head", each.ctypes.data + 64, size, each.ctypes.data, None)
            for each, size in zip(memory, measured.sizes, strict=True)
        ]
        writer.write(self.rows.blocks, np.arange(self.places.counts.size), measured, whole)
        for each, size in zip(memory, measured.sizes, strict=True):
            wanted = xxhash.xxh3_64_intdigest(each[64 : 64 + size].tobytes())
            assert wanted == int.from_bytes(each[:8].tobytes(), "little")
            assert (each[64 + size :] == 0xAA).all()
        return [
            (each[60:64].tobytes(), each[64 : 64 + size].tobytes())
            for each, size in zip(memory, measured.sizes, strict=True)
        ]


def _case(
    lengths: list[int],
    types: tuple[pa.DataType, pa.DataType],
    options: dict[str, Any],
    chosen: list[int],
    out: frozenset[int] = frozenset(),
) -> _Case:
    """Pack documents of some lengths into the rows of one group.

    Args:
        lengths: Elements of each document.
        types: Of tokens, and of another column that is packed alike.
        options: Of packing.
        chosen: Which columns are wanted, in which order.
        out: Pieces that are left out, as those of skipped documents.
    """
    own = [
        wire_column(pa.field(name, pa.list_(kind))) for name, kind in zip("tw", types, strict=True)
    ]
    packed = packed_columns(
        own, ["t", "w"], length=options["length"], bos=options["bos"], eos=options["eos"],
        fill=options["fill"],
    )  # fmt: skip
    wanted = [packed.columns[each] for each in chosen]
    layout = block_layout(own)
    names = ["t", *("w" for each in wanted if each.name == "w")]
    projection = Projection(layout, tuple(layout.by_name[name] for name in names))
    packing = Packing(options["length"], options["cut"], packed.marks)
    documents = np.array(lengths, np.int64)
    count = group_row_count(documents, packing)
    group = pack_group(documents, packing, first_id=5, key=3, row_count=count)
    found = take_pieces([group], np.zeros(count, np.int64), np.arange(count), np.full(count, 5))
    found = _without(found, out)
    return _Case(packed, projection, wanted, found, _laid(lengths, own, projection, found))


def _without(pieces: Pieces, out: frozenset[int]) -> Pieces:
    is_kept = np.array([each not in out for each in range(pieces.sample_ids.size)], np.bool_)
    rows = np.repeat(np.arange(pieces.counts.size), pieces.counts)
    counts = np.bincount(rows[is_kept], minlength=pieces.counts.size)
    return Pieces(counts, pieces.sample_ids[is_kept], pieces.table[is_kept])


def _laid(
    lengths: list[int], columns: list[WireColumn], projection: Projection, pieces: Pieces
) -> _Rows:
    """Lay the documents of pieces into memory, each column after the other."""
    random = np.random.default_rng(1)
    spans = np.zeros((pieces.sample_ids.size, projection.layout.parts[0].row_bytes), np.uint8)
    memory, start = [np.empty(0, np.uint8)], 0
    for column in columns:
        item = column.dtype.itemsize
        edges = start + np.cumsum([0, *lengths]) * item
        values = random.integers(0, 256, int(edges[-1]) - start, np.uint8)
        if item > 4 or column.dtype == np.uint32:
            # As int32 hold them, since other tokens are no labels.
            numbers = values.view(column.dtype)
            numbers[:] = numbers % (1 << 31) * (1 - 2 * (column.dtype.kind == "i"))
        memory.append(values)
        own = pieces.sample_ids - 5
        pairs = np.column_stack([edges[own], np.array(lengths, np.int64)[own] * item])
        at = projection.layout.by_name[column.name].offset
        spans[:, at : at + 16] = np.ascontiguousarray(pairs).view(np.uint8)
        start = int(edges[-1])
    first = -(-start // spans.shape[1])
    whole = np.zeros((first + len(spans)) * spans.shape[1], np.uint8)
    whole[:start] = np.concatenate(memory)
    rows = whole[first * spans.shape[1] :].reshape(spans.shape)
    rows[:] = spans
    blocks = BlockRows(
        projection.layout,
        Memory(whole),
        slot_of=np.zeros(1, np.int32),
        bases=np.array([[first]]),
        blocks=np.zeros(len(spans), np.int64),
        offsets=np.arange(len(spans)),
    )
    return _Rows(blocks, rows)


_OPTIONS = st.fixed_dictionaries(
    {
        "length": st.integers(2, 40),
        "cut": st.sampled_from([0, 1, 2]),
        "bos": st.sampled_from([None, 0, 7]),
        "eos": st.sampled_from([None, 9]),
        "fill": st.sampled_from([0, 100]),
    }
)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=25),
    types=st.tuples(st.sampled_from(_TOKENS), st.sampled_from(_ALIKE)),
    options=_OPTIONS,
    chosen=st.permutations(range(7)).flatmap(
        lambda order: st.integers(1, 7).map(lambda count: list(order[:count]))
    ),
    out=st.frozensets(st.integers(0, 30), max_size=5),
)
def test_the_bytes_are_those_that_numpy_writes(
    lengths: list[int],
    types: tuple[pa.DataType, pa.DataType],
    options: dict[str, Any],
    chosen: list[int],
    out: frozenset[int],
) -> None:
    """Of any documents, marks, columns in any order, and gaps, alone and as several batches."""
    case = _case(lengths, types, options, chosen, out)
    numpy = PlainRowWriter(case.columns, case.projection, case.packed)
    loops = CompiledRows(case.columns, case.projection, case.packed)
    count = case.places.counts.size

    for batch_count in {1, count}:
        assert case.written(numpy, batch_count) == case.written(loops, batch_count)


# The names of the columns are t, w, and what is made of t: t.labels is the third.
_LABELS = 2
_PLACES = {"first": 0, "second": 1, "last": -1}


def _refusal(make: Callable[[], Any], case: _Case) -> str:
    with pytest.raises(StageFailedError) as found:
        case.written(make(), 1)
    assert "5" == found.value.metadata["sample_id"]
    return str(found.value)


@pytest.mark.parametrize("marks", [{"bos": None, "eos": None}, {"bos": 1, "eos": 9}])
@pytest.mark.parametrize("place", ["second", "last"])
@pytest.mark.parametrize(
    ("kind", "token"),
    [
        (pa.uint32(), 1 << 31),
        (pa.uint32(), (1 << 32) - 1),
        (pa.int64(), 1 << 31),
        (pa.int64(), -(1 << 31) - 1),
        (pa.int64(), 1 << 62),
        (pa.uint64(), 1 << 63),
    ],
)
def test_tokens_that_labels_cannot_hold_are_refused(
    kind: pa.DataType, token: int, place: str, marks: dict[str, int | None]
) -> None:
    """Compiled loops and NumPy name the document, the token, the bound and what to do."""
    options = {"length": 16, "cut": 0, "fill": 0, **marks}
    case = _case([9], (kind, pa.float32()), options, [0, _LABELS])
    case.documents(kind)[_PLACES[place]] = token

    refusals = {
        _refusal(lambda: PlainRowWriter(case.columns, case.projection, case.packed), case),
        _refusal(lambda: CompiledRows(case.columns, case.projection, case.packed), case),
    }

    (refusal,) = refusals
    assert f"0 has the token {token} in column 't', but 't.labels' is int32" in refusal
    assert "-2147483648 to 2147483647; correct the token" in refusal


def test_an_end_mark_that_labels_cannot_hold_is_refused() -> None:
    """The mark after a document is the label of its last token."""
    options = {"length": 16, "cut": 0, "fill": 0, "bos": None, "eos": 1 << 31}
    case = _case([9], (pa.uint32(), pa.float32()), options, [_LABELS])

    refusals = {
        _refusal(lambda: PlainRowWriter(case.columns, case.projection, case.packed), case),
        _refusal(lambda: CompiledRows(case.columns, case.projection, case.packed), case),
    }

    (refusal,) = refusals
    assert "token 2147483648" in refusal


@pytest.mark.parametrize(
    ("kind", "place", "token", "chosen"),
    [
        (pa.int64(), "last", (1 << 31) - 1, [_LABELS, 0]),
        (pa.int64(), "last", -(1 << 31), [_LABELS]),
        (pa.uint32(), "last", (1 << 31) - 1, [_LABELS]),
        (pa.uint32(), "first", (1 << 32) - 1, [_LABELS, 0]),
        (pa.uint32(), "last", (1 << 32) - 1, [0, 3]),
        (pa.int64(), "second", 1 << 62, [0]),
    ],
)
def test_tokens_that_become_no_label_or_fit_are_sent(
    kind: pa.DataType, place: str, token: int, chosen: list[int]
) -> None:
    """The bounds themselves, the first token of a document, and batches without labels."""
    options = {"length": 16, "cut": 0, "fill": 0, "bos": None, "eos": None}
    case = _case([9], (kind, pa.float32()), options, chosen)
    case.documents(kind)[_PLACES[place]] = token
    numpy = PlainRowWriter(case.columns, case.projection, case.packed)
    loops = CompiledRows(case.columns, case.projection, case.packed)

    written = case.written(numpy, 1)

    assert written == case.written(loops, 1)
    if chosen[0] == _LABELS:
        labels = np.frombuffer(written[0][1], "<i4", 8)
        wanted = case.documents(kind).astype(np.int64)[1:9]
        assert wanted.tolist() == labels.tolist()


@pytest.mark.parametrize("lie", [-8, 1 << 40])
def test_labels_are_not_looked_for_outside_of_the_memory(lie: int) -> None:
    """A table that lies about where a document is gets an error before anything is read."""
    options = {"length": 16, "cut": 0, "fill": 0, "bos": None, "eos": None}
    case = _case([9], (pa.int64(), pa.float32()), options, [_LABELS])
    case.rows.spans[:, :8].view(np.int64)[:] = lie

    with pytest.raises(InternalError, match="point outside"):
        case.written(CompiledRows(case.columns, case.projection, case.packed), 1)


_ALL = list(range(7))
_PLAIN = {"length": 16, "cut": 0, "bos": None, "eos": 9, "fill": 0}


def _plain() -> _Case:
    return _case([9, 20, 3, 14], (pa.int32(), pa.float32()), _PLAIN, _ALL)


@pytest.mark.parametrize(
    ("column", "by"),
    [(0, -99), (0, 99), (1, -99), (1, 99), (2, 1 << 40), (2, -30), (3, -99), (3, 99), (3, 1 << 62)],
)
def test_pieces_that_lie_outside_of_rows_or_documents_are_refused(column: int, by: int) -> None:
    """Whatever number of a piece is wrong, an error is raised before anything is written."""
    case = _plain()
    case.places.table[2, column] += by
    loops = CompiledRows(case.columns, case.projection, case.packed)

    with pytest.raises((InternalError, StageFailedError)):
        loops.measure(case.rows.blocks, case.read, 1)


@pytest.mark.parametrize("lie", ["begin", "length", "table", "places", "size"])
def test_nothing_is_written_of_tables_that_changed_since_they_were_measured(lie: str) -> None:
    """Each pass looks at all that it is given, so no table is trusted for what another said."""
    case = _plain()
    loops = CompiledRows(case.columns, case.projection, case.packed)
    measured = loops.measure(case.rows.blocks, case.read, 1)
    memory = np.zeros(measured.sizes[0] + 64, np.uint8)
    size = measured.sizes[0]
    if lie == "begin":
        loops._spans[0, 0, 1] = case.rows.memory.array.size
    elif lie == "length":
        loops._spans[0, 1, 1] = -1
    elif lie == "table":
        case.places.table[1, 3] = 15
    elif lie == "places":
        measured.starts[0, 3] += 1
    else:
        size -= 8

    with pytest.raises(InternalError, match="point outside"):
        loops.write(
            case.rows.blocks,
            np.arange(case.places.counts.size),
            measured,
            [(b"", memory.ctypes.data, size, 0, None)],
        )


def test_rows_that_lie_in_no_group_are_refused() -> None:
    """A group that is not there, a row beyond it, or starts that point beyond its pieces."""
    starts, pieces = np.array([0, 1, 3], np.int64), np.zeros((3, 5), np.int32)
    group = [starts.ctypes.data, 3, pieces.ctypes.data, 3]
    counts = np.zeros(1, np.int64)

    for which, row, count in ((0, 2, 3), (0, -1, 3), (1, 0, 3), (-1, 0, 3), (0, 1, 2)):
        tables = np.array([[*group[:3], count]], np.int64)
        with pytest.raises(ValueError, match="lies in no group"):
            LOOPS.count_pieces(tables, np.array([which]), np.array([row]), counts)
    found = LOOPS.count_pieces(np.array([group]), np.array([0]), np.array([1]), counts)
    assert 2 == found
    with pytest.raises(ValueError, match="pieces have no room"):
        LOOPS.take_pieces(
            np.array([group]), np.array([0]), np.array([1]), np.array([0]),
            np.zeros(1, np.int64), np.zeros((2, 4), np.int64),
        )  # fmt: skip
