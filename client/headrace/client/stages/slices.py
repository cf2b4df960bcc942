"""The stage that cuts sequences for the ranks of a mesh; docs/meshes.md describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.arguments import number, one_of, shown, text, texts
from headrace.client.options.stage import COLUMN, RankPlace, Stage
from headrace.errors import BadArgumentError
from headrace.v1 import slices_pb2

_LAYOUTS = {
    "contiguous": slices_pb2.SLICE_LAYOUT_CONTIGUOUS,
    "zigzag": slices_pb2.SLICE_LAYOUT_ZIGZAG,
    "documents": slices_pb2.SLICE_LAYOUT_DOCUMENTS,
}
_COLUMNS = "names of columns, such as ('tokens', 'tokens.labels')"


@dataclass(frozen=True, slots=True)
class Slice(Stage):
    """Send each rank of a mesh its part of the sequences, and what its pipeline stage needs.

    Ranks along ``cp`` get parts of equal length, cut alike in all columns. Of ranks along ``pp``,
    the first alone gets `inputs`, and the last alone `labels`.

    Attributes:
        columns: The columns to cut, whose rows are sequences of one length.
        layout: ``contiguous``: stretches in their order. ``zigzag``: for each rank one from the
            front and one from the back, so that causal attention costs all the same. ``documents``:
            the same within each document of packed rows, as PyTorch's load balancer does it.
        boundaries: The column of boundaries of packed rows, which is cut alike; ``documents`` needs
            it.
        positions: A column to add, with the place of each element in its row as int32; empty for
            none. Packed rows have one that can be cut.
        fill: What to fill up each of `columns` with if a length, or that of a document, is not a
            multiple of the ranks (with a zigzag, of twice as many); None to refuse such lengths.
            Documents of several lengths make the columns ragged.
        inputs: Columns for the first stage of a pipeline alone.
        labels: Columns for its last stage alone.
    """

    columns: tuple[str, ...] = ()
    layout: Literal["contiguous", "zigzag", "documents"] = "zigzag"
    boundaries: str = ""
    positions: str = ""
    fill: Mapping[str, float] | None = None
    inputs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        for name in ("columns", "inputs", "labels"):
            found = texts(f"Slice.{name}", getattr(self, name), wanted=_COLUMNS)
            object.__setattr__(self, name, found)
        one_of("Slice.layout", self.layout, tuple(_LAYOUTS))
        for name in ("boundaries", "positions"):
            if getattr(self, name) != "":
                text(f"Slice.{name}", getattr(self, name), wanted=COLUMN)
        if self.layout == "documents" and not self.boundaries:
            raise BadArgumentError(
                "Slice.layout is 'documents' without boundaries; expected boundaries=, the column "
                "that says where documents end, such as 'tokens.boundaries'",
                field="stages",
            )
        if self.fill is not None:
            self._check_fill(self.fill)

    def _check_fill(self, fill: object) -> None:
        if not isinstance(fill, Mapping) or set(fill) != set(self.columns):
            raise BadArgumentError(
                f"Slice.fill is {shown(fill)}; expected a number for each of "
                f"{', '.join(self.columns)}, or None to refuse lengths that do not divide",
                field="stages",
            )
        for column, value in fill.items():
            number(f"Slice.fill[{column!r}]", value)

    def to_message(self) -> slices_pb2.Slice:
        """Write the stage down for the wire, for the only part."""
        return slices_pb2.Slice(
            columns=self.columns,
            layout=_LAYOUTS[self.layout],
            boundaries=self.boundaries,
            positions=self.positions,
            fills=[] if self.fill is None else [self.fill[each] for each in self.columns],
        )

    def of_rank(self, place: RankPlace | None) -> Stage:
        """Return the part of a rank.

        Raises:
            BadArgumentError: There is no mesh.
        """
        if place is None:
            raise BadArgumentError(
                "stages has a Slice, but there is no mesh= whose ranks would get parts; expected "
                "mesh=, such as {'dp': 2, 'cp': 2}",
                field="mesh",
            )
        stage, count = place.part("pp")
        inputs = () if stage == 0 else self.inputs
        labels = () if stage == count - 1 else self.labels
        return _Part(self, *place.part("cp"), without=(*inputs, *labels))


@dataclass(frozen=True, slots=True)
class _Part(Stage):
    """What one rank gets."""

    whole: Slice
    part: int
    part_count: int
    without: tuple[str, ...]

    def of_rank(self, place: RankPlace | None) -> Stage:
        """Return the part of another rank."""
        return self.whole.of_rank(place)

    def for_all(self, ranks: Sequence[RankPlace]) -> Stage | None:
        """Return the part with all columns that some rank needs; None if they get other parts."""
        if {rank.part("cp") for rank in ranks} != {(self.part, self.part_count)}:
            return None
        left_out = [self.whole.of_rank(rank).left_out for rank in ranks]
        common = [name for name in self.without if all(name in each for each in left_out)]
        return replace(self, without=tuple(common))

    @property
    def left_out(self) -> Sequence[str]:
        """What this rank's stage of a pipeline does not need."""
        return self.without

    def to_message(self) -> slices_pb2.Slice:
        """Write it down for the wire."""
        message = self.whole.to_message()
        message.part, message.part_count = self.part, self.part_count
        message.without.extend(dict.fromkeys(self.without))
        return message
