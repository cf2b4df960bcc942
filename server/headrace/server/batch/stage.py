"""A stage of the batch: it makes columns from columns, first once for a stream, then by batch.

The result for a row depends only on that row, its key and its companions, so it does not depend on
the world size. A stage that works for long yields every few milliseconds, so that its caller can
check for cancellation and stop it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from threading import Event
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import RankBatch
from headrace.server.batch.batch_values import Batch
from headrace.server.batch.row_pool import Workers
from headrace.server.layout.wire_columns import WireColumn
from headrace.v1 import shard_service_pb2 as pb

Columns: TypeAlias = Mapping[str, WireColumn]

_Made = TypeVar("_Made")

Running: TypeAlias = Generator[Event | None, None, _Made]
"""Work on a batch: yields what other threads do, or None every few milliseconds."""

Work: TypeAlias = Generator[None, None, _Made]
"""A long computation: it yields every few milliseconds, and returns its result."""


class Context(Protocol):
    """What a stage may use while it works on a batch."""

    @property
    def workers(self) -> Workers:
        """The threads that work on rows."""

    def claim(self, size: int) -> None:
        """Claim this many bytes for the stage, in all, before they are allocated.

        Raises:
            ShortError: There is not enough memory.
        """

    def in_turns(self, stage: str, row_count: int, work: Work[_Made]) -> Running[_Made]:
        """Work in the stream's thread, when it is the turn of its caller.

        Args:
            stage: The name of the stage, for errors.
            row_count: The rows of the batch, for errors.
            work: The work; it is closed in the end.

        Raises:
            StageFailedError: It takes too long.
        """


class Companions(NamedTuple):
    """Samples of a global batch that a rank reads in addition to its own.

    Attributes:
        positions: ``(others,) int64``, ascending: the positions of the additional samples. They
            come after the batch's own.
        rows: ``(samples,) int64``: the row of the companion of each of the batch's own samples.
    """

    positions: NDArray[np.int64]
    rows: NDArray[np.int64]


Accompany: TypeAlias = Callable[[RankBatch, NDArray[np.int64]], Companions]
"""Finds the companions of a rank's part of a global batch, given the positions of its samples."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """How samples are replaced that a stage cannot use.

    Attributes:
        use: The same text for stages to which the same samples are damaged.
        failure: What is wrong with a sample, such as "the image of sample {} cannot be decoded".
        advice: What to do if there are no other samples.
    """

    use: str
    failure: str
    advice: str


class Stage(ABC):
    """One stage of a stream.

    Attributes:
        runs_ahead: Whether it may work on the next batch while one is written.
        takes_unmade: Whether `run` accepts columns that are not made yet (`Values.later`).
    """

    runs_ahead: ClassVar[bool] = True
    takes_unmade: ClassVar[bool] = False

    @abstractmethod
    def columns(self, before: Columns) -> dict[str, WireColumn]:
        """Return the columns that it makes of others.

        Raises:
            HeadraceError: The stage does not support these columns.
        """

    @abstractmethod
    def run(self, batch: Batch, context: Context) -> Running[Batch]:
        """Make the columns; closing the generator stops the work.

        Raises:
            StageFailedError: The stage fails for this batch.
            ShortError: There is not enough memory.
        """

    @property
    def replacement(self) -> Replacement | None:
        """How samples are replaced whose rows are in `Batch.damaged`; None if none can be."""
        return None

    @property
    def accompany(self) -> Accompany | None:
        """Finds the samples that it needs in addition to a rank's; None if it needs none."""
        return None


class ColumnStage(Stage):
    """A stage that makes columns in the stream's own thread, in turns with other streams."""

    @abstractmethod
    def cost(self, batch: Batch) -> int:
        """Return the most memory that making the columns takes, in bytes, including the result."""

    @abstractmethod
    def work(self, batch: Batch) -> Work[Batch]:
        """Make the columns.

        Raises:
            StageFailedError: The stage fails for this batch.
        """

    def run(self, batch: Batch, context: Context) -> Running[Batch]:
        context.claim(self.cost(batch))
        return context.in_turns(type(self).__name__, batch.row_count, self.work(batch))


def wanted_column(
    columns: Columns, name: str, stage: str, kinds: tuple[pb.ColumnKind, ...]
) -> WireColumn:
    """Return the column that a stage changes.

    Raises:
        BadArgumentError: There is no such column, or it has another kind.
    """
    column = columns.get(name)
    if column is None:
        raise BadArgumentError(
            f"{stage}: there is no column {name!r}; before this stage there are "
            f"{', '.join(columns)}",
            field="stages",
        )
    if column.kind not in kinds:
        found, *wanted = (
            pb.ColumnKind.Name(kind).removeprefix("COLUMN_KIND_").lower()
            for kind in (column.kind, *kinds)
        )
        raise BadArgumentError(
            f"{stage}: column {name!r} is {found}; it must be {' or '.join(wanted)}", field="stages"
        )
    return column


def tensor_of(column: WireColumn, shape: tuple[int, ...]) -> WireColumn:
    """Return a tensor column, whose rows have one shape."""
    return replace(column, kind=pb.COLUMN_KIND_TENSOR, item_shape=shape)
