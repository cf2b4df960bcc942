"""What a server does with each batch before it sends it; docs/protocol.md has the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.errors import BadArgumentError
from headrace.v1 import shard_service_pb2 as pb

_TYPES = {
    "bool": pb.ELEMENT_TYPE_BOOL,
    "int8": pb.ELEMENT_TYPE_INT8,
    "int16": pb.ELEMENT_TYPE_INT16,
    "int32": pb.ELEMENT_TYPE_INT32,
    "int64": pb.ELEMENT_TYPE_INT64,
    "uint8": pb.ELEMENT_TYPE_UINT8,
    "uint16": pb.ELEMENT_TYPE_UINT16,
    "uint32": pb.ELEMENT_TYPE_UINT32,
    "uint64": pb.ELEMENT_TYPE_UINT64,
    "float16": pb.ELEMENT_TYPE_FLOAT16,
    "float32": pb.ELEMENT_TYPE_FLOAT32,
    "float64": pb.ELEMENT_TYPE_FLOAT64,
}
_FITS = {
    "cover": pb.IMAGE_FIT_COVER,
    "contain": pb.IMAGE_FIT_CONTAIN,
    "stretch": pb.IMAGE_FIT_STRETCH,
}


@dataclass(frozen=True, slots=True)
class Cast:
    """Make a column's numbers numbers of another type, such as ``float16``.

    Attributes:
        column: The column.
        dtype: Name of the type as NumPy has it; ``bool`` too. A number that it cannot hold is an
            error, but for the rounding of floating point.
    """

    column: str
    dtype: str

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        if self.dtype not in _TYPES:
            raise BadArgumentError(
                f"cast to {self.dtype!r}; wanted one of {', '.join(_TYPES)}", field="steps"
            )
        return pb.BatchStep(cast=pb.Cast(column=self.column, element_type=_TYPES[self.dtype]))


@dataclass(frozen=True, slots=True)
class Pad:
    """Make a ragged column a tensor, with a column ``<column>.length`` beside it.

    Attributes:
        column: The column.
        length: Elements of a row, >= 1.
        fill: What fills a row up.
        truncate: Whether longer rows are cut; else one is an error.
    """

    column: str
    length: int
    fill: float = 0
    truncate: bool = False

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(
            pad=pb.Pad(
                column=self.column, length=self.length, fill=self.fill, truncate=self.truncate
            )
        )


@dataclass(frozen=True, slots=True)
class Stack:
    """Make a ragged column, all of whose rows have one length, a tensor.

    Attributes:
        column: The column.
        item_shape: The shape of a row.
    """

    column: str
    item_shape: tuple[int, ...]

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(stack=pb.Stack(column=self.column, item_shape=self.item_shape))


@dataclass(frozen=True, slots=True)
class DecodeImage:
    """Make a column of JPEG or PNG files a uint8 tensor ``(samples, height, width, channels)``.

    Attributes:
        column: The column.
        height: Rows of pixels.
        width: Pixels of a row.
        channels: 3 for red, green and blue, 1 for luminance.
        fit: Scaled to ``cover`` the size and cut to its middle, to lie within it amid zeros
            (``contain``), or to the size, its proportions lost (``stretch``).
    """

    column: str
    height: int
    width: int
    channels: Literal[1, 3] = 3
    fit: Literal["cover", "contain", "stretch"] = "cover"

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        if self.fit not in _FITS:
            raise BadArgumentError(
                f"fit is {self.fit!r}; wanted one of {', '.join(_FITS)}", field="steps"
            )
        return pb.BatchStep(
            decode_image=pb.DecodeImage(
                column=self.column,
                height=self.height,
                width=self.width,
                channels=self.channels,
                fit=_FITS[self.fit],
            )
        )


@dataclass(frozen=True, slots=True)
class Pack:
    """Pack the rows of a ragged column, the documents, into rows of one length.

    The batch then holds the column, a tensor ``(row_count, length)``; ``<column>.boundaries``,
    where each document of a row begins and the last one ends; ``<column>.sample``, which sample
    of the batch each document is; and nothing else. `Batch.overflow_count` samples found no room.

    Attributes:
        column: The column.
        row_count: Rows of each rank's batch.
        length: Elements of a row; longer documents are cut.
        fill: What fills a row up.
    """

    column: str
    row_count: int
    length: int
    fill: float = 0

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(
            pack=pb.Pack(
                column=self.column, row_count=self.row_count, length=self.length, fill=self.fill
            )
        )


@dataclass(frozen=True, slots=True)
class Transform:
    """Call a function that the server's operator has registered, over all columns.

    Its name and version are in tokens: a run goes on with the same ones alone.

    Attributes:
        name: Its name on the server.
        version: Its version; empty for the server's.
    """

    name: str
    version: str = ""

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(transform=pb.Transform(name=self.name, version=self.version))


Step = Transform | Cast | Pad | Stack | DecodeImage | Pack


def transforms_text(steps: Sequence[Step]) -> str:
    """Return what a token says of transforms.

    Raises:
        BadArgumentError: The version of one is left to the server, so it is not known here.
    """
    found = [step for step in steps if isinstance(step, Transform)]
    for step in found:
        if not step.version:
            raise BadArgumentError(
                f"the version of the transform {step.name!r} is left to the server, so no state "
                "can be made before the first batch; give its version, or take the state later",
                field="steps",
            )
    return ",".join(f"{step.name}@{step.version}" for step in found)
