"""Boundaries of documents in a batch of packed rows, in the form that attention kernels take."""

from __future__ import annotations

import torch

from headrace.client.batch.columns import RaggedColumn
from headrace.errors import BadArgumentError


def cu_seqlens(boundaries: RaggedColumn) -> tuple[torch.Tensor, int]:
    """Return where the pieces of a batch end, over all of its rows, and the longest length.

    Args:
        boundaries: The column ``<column>.boundaries`` of packed rows.

    Returns:
        ``(pieces + 1,) int32`` from 0 to all elements of the batch, the ``cu_seqlens`` of
        FlashAttention's ``varlen`` functions; and the elements of the longest piece, their
        ``max_seqlen``.

    Raises:
        BadArgumentError: The argument is not such a column.
    """
    found: object = boundaries
    if not isinstance(found, RaggedColumn):
        raise BadArgumentError(
            f"boundaries is a {type(found).__name__}; expected the column <column>.boundaries of "
            "packed rows, such as batch['tokens.boundaries']",
            field="boundaries",
        )
    values, offsets = found.values.to(torch.int32), found.offsets
    counts = offsets[1:] - offsets[:-1]
    if not len(counts):
        return torch.zeros(1, dtype=torch.int32), 0
    # Each row starts where the one before ends.
    lasts = values[offsets[1:] - 1]
    starts = torch.cumsum(lasts, 0, dtype=torch.int32) - lasts
    is_end = torch.ones(len(values), dtype=torch.bool)
    is_end[offsets[:-1]] = False
    ends = (values + torch.repeat_interleave(starts, counts))[is_end]
    edges = torch.cat([torch.zeros(1, dtype=torch.int32), ends])
    return edges, int((edges[1:] - edges[:-1]).max())
