"""Claims about parts of sequences: they are torch's, and all columns are cut alike.

How it could go wrong: labels that are not those of their tokens; an element that no rank has, or
two; a document taken for another's rest; a boundary column that points into other rows.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.distributed.tensor.experimental._context_parallel import _load_balancer as torchs

from headrace.errors import BadArgumentError, StageFailedError
from headrace.order import SequenceLayout
from headrace.server.batch.batch_values import Batch, Values
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.slices.cut_sequences import Slice
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import slices_pb2

_INT32 = np.dtype("<i4")
_CONTIGUOUS, _ZIGZAG, _DOCUMENTS = 1, 2, 3
_PARTS = st.sampled_from([1, 2, 3, 4])


def _tensor(name: str, values: NDArray[Any]) -> Values:
    column = WireColumn(
        name, pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_INT32, values.dtype, values.shape[1:]
    )
    return Values(column, values)


def _lists(name: str, rows: list[list[int]]) -> Values:
    column = WireColumn(name, pb.COLUMN_KIND_RAGGED, pb.ELEMENT_TYPE_INT32, _INT32)
    offsets = np.cumsum([0, *map(len, rows)])
    return Values(column, np.array(list(itertools.chain(*rows)), _INT32), offsets)


def _batch(tokens: NDArray[Any], documents: list[list[int]] | None = None) -> Batch:
    """Return tokens with labels, and where their documents end."""
    columns = [_tensor("tokens", tokens), _tensor("labels", tokens + 1000)]
    if documents is not None:
        columns.append(_lists("ends", [np.cumsum([0, *each]).tolist() for each in documents]))
    return Batch({each.column.name: each for each in columns}, len(tokens))


def _cut(batch: Batch, **options: Any) -> dict[str, Values]:
    given = {"columns": ["tokens", "labels"], **options}
    stage = Slice(slices_pb2.Slice(**given))
    columns = stage.columns({name: each.column for name, each in batch.columns.items()})
    work = stage.work(batch)
    while True:
        try:
            next(work)
        except StopIteration as end:
            made: Batch = end.value
            break
    assert columns == {name: each.column for name, each in made.columns.items()}
    for each in made.columns.values():
        if each.offsets is None:
            assert each.values.shape == (batch.row_count, *each.column.item_shape)
    return made.columns


def _rows(values: Values) -> list[list[int]]:
    if values.offsets is None:
        rows: list[list[int]] = values.values.tolist()
        return rows
    pairs = zip(values.offsets[:-1].tolist(), values.offsets[1:].tolist(), strict=True)
    return [values.values[low:high].tolist() for low, high in pairs]


def _numbered(rows: int, length: int) -> NDArray[np.int32]:
    return np.arange(rows * length, dtype=np.int32).reshape(rows, length)


@given(parts=_PARTS, steps=st.integers(1, 5), rows=st.integers(0, 3))
def test_zigzags_are_those_of_torch(parts: int, steps: int, rows: int) -> None:
    """`_HeadTailLoadBalancer` and a shard for each rank; labels and positions alike."""
    tokens = _numbered(rows, 2 * parts * steps)
    order = torchs._HeadTailLoadBalancer(2 * parts * steps, parts, "cpu")._generate_indices()[0]
    wanted = torch.from_numpy(tokens)[:, order].chunk(parts, 1)

    for part in range(parts):
        found = _cut(_batch(tokens), part=part, part_count=parts, layout=_ZIGZAG, positions="at")

        assert wanted[part].tolist() == _rows(found["tokens"])
        assert (wanted[part] + 1000).tolist() == _rows(found["labels"])
        assert [order.chunk(parts)[part].tolist()] * rows == _rows(found["at"])


_DOCUMENT_ROWS = st.lists(
    st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=4
)


@given(parts=st.sampled_from([2, 3]), steps=_DOCUMENT_ROWS)
def test_zigzags_of_documents_are_those_of_torch(parts: int, steps: list[list[int]]) -> None:
    """`_PerDocumentHeadTailLoadBalancer` and a shard for each rank."""
    length = max(map(sum, steps)) + 1
    steps = [[*row, length - sum(row)] for row in steps]
    documents = [[2 * parts * step for step in row] for row in steps]
    tokens = _numbered(len(steps), 2 * parts * length)
    order = torchs._PerDocumentHeadTailLoadBalancer(documents, parts, "cpu")._generate_indices()
    wanted = torch.from_numpy(tokens).gather(1, order).chunk(parts, 1)

    for part in range(parts):
        found = _cut(
            _batch(tokens, documents),
            part=part,
            part_count=parts,
            layout=_DOCUMENTS,
            boundaries="ends",
        )

        assert wanted[part].tolist() == _rows(found["tokens"])
        assert (wanted[part] + 1000).tolist() == _rows(found["labels"])


@given(
    parts=st.sampled_from([2, 3]),
    documents=_DOCUMENT_ROWS,
    layout=st.sampled_from([_CONTIGUOUS, _ZIGZAG, _DOCUMENTS]),
)
def test_nothing_is_lost_whatever_the_lengths(
    parts: int, documents: list[list[int]], layout: int
) -> None:
    """Each element is in one part, what fills up is the fill, and boundaries are where they are."""
    length = max(map(sum, documents)) + 1
    documents = [[*row, length - sum(row)] for row in documents]
    tokens = _numbered(len(documents), length)
    owner = [np.repeat(np.arange(len(row)), row).tolist() for row in documents]
    seen: list[list[int]] = [[] for _ in documents]
    for part in range(parts):
        found = _cut(
            _batch(tokens, documents),
            part=part,
            part_count=parts,
            layout=layout,
            boundaries="ends",
            fills=[-1, -2],
        )
        own, labels = _rows(found["tokens"]), _rows(found["labels"])
        assert [[x + 1000 if x >= 0 else -2 for x in row] for row in own] == labels
        for row, (elements, ends) in enumerate(zip(own, _rows(found["ends"]), strict=True)):
            assert [0, len(elements)] == [ends[0], ends[-1]]
            assert sorted(set(ends)) == ends
            for low, high in itertools.pairwise(ends):
                piece = [x % length for x in elements[low:high] if x >= 0]
                assert len({owner[row][x] for x in piece}) <= 1
                if layout != _DOCUMENTS:
                    assert piece == list(range(piece[0], piece[0] + len(piece))) if piece else True
            seen[row] += [x for x in elements if x >= 0]
        assert len({len(row) % (1 if layout == _CONTIGUOUS else 2) for row in own}) == 1

    assert tokens.tolist() == [sorted(row) for row in seen]


@given(parts=_PARTS, steps=st.integers(1, 4), layout=st.sampled_from([_CONTIGUOUS, _ZIGZAG]))
def test_attention_over_parts_is_that_of_whole_rows(parts: int, steps: int, layout: int) -> None:
    """Causal, each part with its positions over the keys and values of all."""
    length = 2 * parts * steps
    states = torch.randn(length, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    batch = _batch(_numbered(1, length))
    at = [
        torch.tensor(
            _rows(_cut(batch, part=i, part_count=parts, layout=layout, positions="at")["at"])[0]
        )
        for i in range(parts)
    ]
    gathered, places = torch.cat([states[each] for each in at]), torch.cat(at)

    def attention(query: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        scores = query @ gathered.T
        scores = scores.masked_fill(places[None] > own[:, None], -torch.inf)
        return scores.softmax(1) @ gathered

    whole = torch.nn.functional.scaled_dot_product_attention(
        states[None], states[None], states[None], is_causal=True, scale=1.0
    )[0]
    for own in at:
        torch.testing.assert_close(attention(states[own], own), whole[own], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"part": 2}, "part is 2 of 2"),
        ({"layout": _ZIGZAG}, "sequences of 6, which is not a multiple of 4"),
        ({"layout": 9}, "layout is 9"),
        ({"layout": _DOCUMENTS}, "needs the column of boundaries"),
        ({"fills": [1]}, "1 fills for the columns.*each column once"),
        ({"fills": [1, 0.5]}, "0.5 is none of int32"),
        ({"columns": ["tokens", "ends"]}, "'ends' is ragged"),
        ({"columns": ["tokens", "short"]}, r"lengths \{'tokens': 6, 'short': 2\}"),
        ({"columns": ["number"]}, "'number' has no sequence"),
        ({"columns": [], "positions": "at"}, "there are none"),
        ({"positions": "labels"}, "already exists"),
        ({"boundaries": "tokens"}, "'tokens' is tensor"),
        ({"without": ["gone"]}, "no column 'gone'"),
    ],
)
def test_what_cannot_be_cut_is_refused(options: dict[str, Any], words: str) -> None:
    """When a stream starts, with what was found and what is wanted."""
    batch = _batch(_numbered(2, 6), [[6], [6]])
    more = [_tensor("short", _numbered(2, 2)), _tensor("number", np.arange(2))]
    columns = {**batch.columns, **{each.column.name: each for each in more}}

    with pytest.raises(BadArgumentError, match=words):
        _cut(Batch(columns, 2), **{"part_count": 2, **options})


@pytest.mark.parametrize(
    "ends", [[[0, 8], []], [[0, 8], [0, 7]], [[0, 8], [0, 9]], [[0, 8], [1, 8]], [[0, 5, 3, 8]] * 2]
)
def test_a_column_that_is_no_boundaries_is_refused(ends: list[list[int]]) -> None:
    """Nothing outside of a row is read."""
    batch = _batch(_numbered(2, 8))
    columns = {**batch.columns, "ends": _lists("ends", ends)}
    for layout in SequenceLayout:
        with pytest.raises(StageFailedError, match="'ends' does not have the boundaries"):
            _cut(
                Batch(columns, 2),
                part_count=2,
                boundaries="ends",
                layout=list(SequenceLayout).index(layout) + 1,
            )


def test_a_document_of_another_length_is_refused() -> None:
    """With its row."""
    batch = _batch(_numbered(2, 8), [[4, 4], [3, 5]])

    with pytest.raises(StageFailedError, match="row 1 has a document, or padding, of 3 elements"):
        _cut(batch, part_count=2, boundaries="ends", layout=_DOCUMENTS)


def test_columns_are_left_out_and_others_stay() -> None:
    """Also of a single part, which is not cut."""
    batch = _batch(_numbered(2, 5), [[5], [5]])

    found = _cut(batch, without=["labels"], boundaries="ends", layout=_DOCUMENTS)

    assert ["tokens", "ends"] == list(found)
    assert batch.columns["tokens"].values.tolist() == _rows(found["tokens"])
