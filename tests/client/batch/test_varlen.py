"""Claims about the boundaries of packed rows over a whole batch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from headrace.client import RaggedColumn, cu_seqlens
from headrace.client.wire.payload_layout import ColumnView
from headrace.errors import BadArgumentError
from headrace.v1 import shard_service_pb2 as pb


def _column(rows: list[list[int]]) -> RaggedColumn:
    values = np.array([edge for row in rows for edge in row], np.int32)
    offsets = np.array([0, *np.cumsum([len(row) for row in rows])], np.int64)
    return RaggedColumn(ColumnView(pb.COLUMN_KIND_RAGGED, values, offsets))


def test_boundaries_are_counted_through_all_rows() -> None:
    """From 0 to all elements, each row where the one before ends."""
    edges, longest = cu_seqlens(_column([[0, 3, 8], [0, 8], [0, 1, 2, 8]]))

    assert edges.tolist() == [0, 3, 8, 16, 17, 18, 24]
    assert str(edges.dtype) == "torch.int32"
    assert longest == 8


def test_a_batch_without_rows_has_no_pieces() -> None:
    """Some ranks get none of an incomplete last batch."""
    edges, longest = cu_seqlens(_column([]))

    assert edges.tolist() == [0]
    assert longest == 0


def test_what_is_no_column_of_boundaries_is_refused() -> None:
    """With what to give instead."""
    with pytest.raises(BadArgumentError, match=r"batch\['tokens.boundaries'\]"):
        cu_seqlens(cast("Any", [0, 1]))
