"""Check documents before they become rows: their lengths, and the tokens that become labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StageFailedError
from headrace.order import Pieces
from headrace.server.cache.memory.arena import Memory
from headrace.server.layout.packed_columns import PackedColumns
from headrace.server.layout.wire_columns import WireColumn

Title = Callable[[int], str]
"""Names the document of a piece in errors, such as ``sample 7``."""


NO_PIECES = Pieces(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 4), np.int64))

_LABELS = np.iinfo(np.int32)


def check_lengths(
    places: Pieces,
    column: WireColumn,
    lengths: NDArray[np.int64],
    *,
    marks: int,
    title: Title,
) -> None:
    """Compare documents with the lengths that their rows were packed with.

    Args:
        places: The pieces.
        column: The column of the documents.
        lengths: ``(pieces,) int64``: bytes of the document of each piece.
        marks: Elements that are added around each document.
        title: Names the document of a piece.

    Raises:
        StageFailedError: A document has another length.
    """
    expected = places.table[:, 2] - marks
    wrong = np.flatnonzero(lengths != expected * column.dtype.itemsize)
    if wrong.size:
        piece = int(wrong[0])
        raise StageFailedError(
            f"{title(piece)} has {lengths[piece] // column.dtype.itemsize} elements in column "
            f"{column.name!r}, but {expected[piece]} in the lengths that were used for packing; "
            "store the lengths again with `headrace index --pack-length`",
            column=column.name,
            sample_id=str(places.sample_ids[piece]),
        )


def has_labels(packed: PackedColumns, columns: Sequence[WireColumn]) -> bool:
    """Return whether labels are among the columns of a stream."""
    return any(each.name == f"{packed.name}.labels" for each in columns)


def has_wide_tokens(packed: PackedColumns, column: WireColumn) -> bool:
    """Return whether a column contains tokens, of a type with numbers that labels cannot hold."""
    return column.name == packed.name and not np.can_cast(column.dtype, np.int32)


def check_labels(
    places: Pieces,
    packed: PackedColumns,
    starts: NDArray[np.int64],
    memory: Memory,
    *,
    title: Title,
) -> None:
    """Refuse tokens that become labels, all but the first of a piece, if int32 cannot hold them.

    Args:
        places: The pieces.
        packed: The columns of rows.
        starts: ``(pieces,) int64``: where the document of each piece starts in memory, in bytes.
        memory: The memory of the starts; documents outside it are not checked.
        title: Names the document of a piece.

    Raises:
        StageFailedError: A token does not fit.
    """
    dtype, has_bos = packed.sources[0].dtype, packed.bos is not None
    for piece, (first, size, total, _) in enumerate(places.table.tolist()):
        # Documents are stored without marks.
        low, high = first + 1 - has_bos, min(first + size - has_bos, total - packed.marks)
        start, end = (int(starts[piece]) + at * dtype.itemsize for at in (low, high))
        if not 0 <= start <= end <= memory.array.size:
            continue
        tokens = memory.array[start:end].view(dtype)
        wrong = tokens[(tokens < _LABELS.min) | (tokens > _LABELS.max)]
        if wrong.size:
            raise _not_a_label(places, piece, int(wrong[0]), packed, title)
        is_end_a_label = first + size == total and size > 1
        if is_end_a_label and packed.eos is not None and packed.eos > _LABELS.max:
            raise _not_a_label(places, piece, packed.eos, packed, title)


def _not_a_label(
    places: Pieces, piece: int, token: int, packed: PackedColumns, title: Title
) -> StageFailedError:
    name = packed.name
    return StageFailedError(
        f"{title(piece)} has the token {token} in column {name!r}, but {f'{name}.labels'!r} is "
        f"int32 and holds {_LABELS.min} to {_LABELS.max}; correct the token, or request the "
        f"columns without {f'{name}.labels'!r} and make the labels of {name!r} in the trainer",
        column=name,
        sample_id=str(places.sample_ids[piece]),
    )
