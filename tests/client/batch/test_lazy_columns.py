"""Lazy sequences of strings and bytes give what was written, however they are read."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import BytesColumn, StringColumn
from headrace.client.wire.payload_layout import ColumnView
from headrace.v1 import shard_service_pb2 as pb

_BOUND = st.one_of(st.none(), st.integers(-7, 7))


def _view(items: list[bytes | None], kind: int) -> ColumnView:
    ends = accumulate((len(item or b"") for item in items), initial=0)
    return ColumnView(
        kind,
        np.frombuffer(b"".join(item or b"" for item in items), np.uint8),
        np.fromiter(ends, np.int64, len(items) + 1),
        np.array([item is not None for item in items], np.bool_),
    )


@given(
    texts=st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=12),
    repeat=st.sampled_from([1, 2, 60]),
    start=_BOUND,
    end=_BOUND,
    step=st.sampled_from([None, 1, 2, -1]),
)
def test_items_are_those_that_were_written(
    texts: list[str | None], repeat: int, start: int | None, end: int | None, step: int | None
) -> None:
    """One by one, in a loop and in slices: ASCII or not, empty or null, in one run or several."""
    texts *= repeat
    blobs = [None if text is None else text.encode() for text in texts]
    strings = StringColumn(_view(blobs, pb.COLUMN_KIND_STRING))
    pieces = BytesColumn(_view(blobs, pb.COLUMN_KIND_BYTES))

    assert texts == list(strings) == [strings[index] for index in range(len(strings))]
    assert blobs == list(pieces) == [pieces[index] for index in range(len(pieces))]
    assert texts[start:end:step] == strings[start:end:step]
    assert blobs[start:end:step] == pieces[start:end:step]
