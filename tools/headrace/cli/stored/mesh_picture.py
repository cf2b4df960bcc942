"""Which rank of a mesh gets which samples of a global batch, and which part of each, as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from headrace.client import Mesh
from headrace.client.options.mesh import MeshRank, mesh_rank
from headrace.errors import BadArgumentError
from headrace.order import RankBatch, SequenceLayout


def mesh_of(text: str) -> Mesh:
    """Return the mesh that a text such as ``dp=2,tp=4`` means.

    Raises:
        BadArgumentError: It means none.
    """
    pairs = [each.partition("=") for each in text.split(",")]
    if any(not size.isdecimal() for _, _, size in pairs):
        raise BadArgumentError(
            f"--mesh is {text!r}; expected axes with sizes, the slowest first, such as dp=2,tp=4",
            field="mesh",
        )
    return Mesh({axis: int(size) for axis, _, size in pairs})


def mesh_lines(
    mesh: Mesh,
    part_of: Callable[[int, int], RankBatch],
    ids_of: Callable[[RankBatch], Sequence[object]],
    *,
    length: int | None,
    layout: SequenceLayout,
) -> Iterator[str]:
    """Yield a line for each rank: its places, its samples, and its part of each sequence.

    Args:
        mesh: The mesh.
        part_of: Returns part i of n of the global batch.
        ids_of: Returns the samples of a part.
        length: Elements of a sequence that is cut along ``cp``; None if none is.
        layout: How it is cut.

    Raises:
        BadArgumentError: The length does not divide.
    """
    axes, count = list(mesh.sizes), math.prod(mesh.sizes.values())
    rows = [["rank", *axes, "samples", *([] if length is None else ["of each sequence"])]]
    for number in range(count):
        rank = mesh_rank(mesh, rank=number, world_size=count)
        assert rank is not None
        samples = ",".join(map(str, ids_of(part_of(*rank.data))))
        row = [str(number), *map(str, rank.at), samples]
        rows.append(row if length is None else [*row, _part(rank, length, layout)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _part(rank: MeshRank, length: int, layout: SequenceLayout) -> str:
    part, parts = rank.part("cp")
    if parts > 1 and length % layout.unit(parts):
        raise BadArgumentError(
            f"--sequence is {length}, which is not a multiple of {layout.unit(parts)} for {parts} "
            "parts; expected one that is",
            field="sequence",
        )
    cut = layout if parts > 1 else SequenceLayout.CONTIGUOUS
    return " ".join(f"{start}:{stop}" for start, stop in cut.stretches(length, part, parts))
