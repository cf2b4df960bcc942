"""Which rank of a mesh gets which samples of a global batch, and which part of each, as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from headrace.client import Mesh
from headrace.client.options.mesh import MeshRank, mesh_rank
from headrace.errors import BadArgumentError
from headrace.order import RankBatch, SequenceLayout

_DIGITS = 9


def mesh_of(text: str) -> Mesh:
    """Return the mesh that a text such as ``dp=2,tp=4`` means.

    Raises:
        BadArgumentError: It means none.
    """
    pairs = [each.strip().partition("=") for each in text.split(",")]
    sizes = {
        axis: int(size) for axis, _, size in pairs if size.isdecimal() and len(size) <= _DIGITS
    }
    if len(sizes) != len(pairs):
        raise BadArgumentError(
            f"mesh is {text[:80]!r}; expected axes with sizes, each once and the slowest first, "
            "such as dp=2,tp=4",
            field="mesh",
        )
    return Mesh(sizes)


def mesh_ranks(
    mesh: Mesh, *, length: int | None, layout: SequenceLayout = SequenceLayout.ZIGZAG
) -> Iterator[tuple[MeshRank, str]]:
    """Yield the place of each rank in a mesh, and its stretches of each sequence as text.

    Args:
        mesh: The mesh.
        length: Elements of a sequence that is cut along ``cp``; None if none is.
        layout: How it is cut.

    Raises:
        BadArgumentError: The length does not divide.
    """
    count = math.prod(mesh.sizes.values())
    for number in range(count):
        rank = mesh_rank(mesh, rank=number, world_size=count, job="")
        assert rank is not None
        yield rank, "" if length is None else _part(rank, length, layout)


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
    rows = [["rank", *mesh.sizes, "samples", *([] if length is None else ["of each sequence"])]]
    for number, (rank, part) in enumerate(mesh_ranks(mesh, length=length, layout=layout)):
        samples = ",".join(map(str, ids_of(part_of(*rank.data))))
        rows.append([str(number), *map(str, rank.at), samples, *([part] if part else [])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _part(rank: MeshRank, length: int, layout: SequenceLayout) -> str:
    part, parts = rank.part("cp")
    if parts > 1 and length % layout.unit(parts):
        raise BadArgumentError(
            f"sequence is {length}, which is not a multiple of {layout.unit(parts)} for {parts} "
            "parts; expected one that is",
            field="sequence",
        )
    cut = layout if parts > 1 else SequenceLayout.CONTIGUOUS
    return " ".join(f"{start}:{stop}" for start, stop in cut.stretches(length, part, parts))
