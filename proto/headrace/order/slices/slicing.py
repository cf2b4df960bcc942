"""Slicing: which positions of an epoch a rank gets in each global batch. Pure arithmetic."""

from __future__ import annotations

import enum
from bisect import bisect_right
from dataclasses import dataclass

from headrace.errors import BadArgumentError, PositionPastEndError
from headrace.order.basics.checks import check_range


class EndMode(enum.Enum):
    """What happens to the last positions of an epoch if they do not fill a global batch."""

    DROP_LAST = "drop_last"
    """They are left out, and counted in `EpochPlan.dropped`."""
    UNEVEN = "uneven"
    """They make a smaller last batch; some ranks may get one sample fewer, or none."""
    PAD = "pad"
    """They make a last batch, which is filled up by repeating it from its start, and then shared
    like any other: repeats come last, over all ranks."""


@dataclass(frozen=True, slots=True)
class RankBatch:
    """One rank's part of one global batch.

    Attributes:
        index: Number of the global batch, counted from the plan's base.
        position: First position of the global batch.
        next_position: Position after the global batch, which the token after it holds.
        global_sample_count: Samples of the global batch, without pads.
        start: This rank's first position.
        stop: Position after this rank's last.
        pad_positions: Positions whose samples are repeated after them, as pads. Joined in the order
            of ranks, the rows of a global batch are first its samples and then its pads.
        loss_scale: n * W / `global_sample_count`, where n is this rank's samples without pads and
            W the number of parts. If each rank multiplies its mean loss by it, the mean over ranks
            is the mean over the global batch.
    """

    index: int
    position: int
    next_position: int
    global_sample_count: int
    start: int
    stop: int
    pad_positions: tuple[int, ...]
    loss_scale: float

    @property
    def sample_count(self) -> int:
        """Rows of this rank's batch, pads included."""
        return self.stop - self.start + len(self.pad_positions)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """How the positions [base, sample_count) of an epoch are cut into global batches.

    The global batches depend only on these fields, so they are the same for every world size.

    Attributes:
        sample_count: Positions of the epoch, >= 0.
        base: First position: that of the token in the epoch where a stream starts, else 0.
        global_batch_size: Samples of a global batch, >= 1.
        end: What happens to the last positions.
    """

    sample_count: int
    base: int
    global_batch_size: int
    end: EndMode = EndMode.DROP_LAST

    def __post_init__(self) -> None:
        check_range("sample_count", self.sample_count, low=0, high=1 << 62)
        check_range("global_batch_size", self.global_batch_size, low=1, high=1 << 62)
        check_range("position", self.base, low=0, high=1 << 62)
        if self.base > self.sample_count:
            raise PositionPastEndError(
                f"position {self.base} is past the end: an epoch has {self.sample_count} samples",
                position=self.base,
                sample_count=self.sample_count,
            )

    @property
    def batch_count(self) -> int:
        """Number of global batches of the plan; every rank gets a part of each."""
        rest = self.sample_count - self.base
        if self.end is EndMode.DROP_LAST:
            return rest // self.global_batch_size
        return -(-rest // self.global_batch_size)

    @property
    def dropped(self) -> int:
        """Number of positions at the end that no rank gets."""
        if self.end is not EndMode.DROP_LAST:
            return 0
        return (self.sample_count - self.base) % self.global_batch_size

    def batch(self, index: int, *, rank: int, world_size: int) -> RankBatch:
        """Return a rank's part of a global batch.

        Args:
            index: Number of the global batch, in [0, `batch_count`).
            rank: In [0, `world_size`).
            world_size: Number of ranks, at most `global_batch_size`.

        Raises:
            BadArgumentError: Rank, world size and batch size do not fit together.
            PositionPastEndError: There is no such batch.
        """
        (batch,) = self.batches(range(index, index + 1), rank=rank, world_size=world_size)
        return batch

    def batches(self, indices: range, *, rank: int, world_size: int) -> list[RankBatch]:
        """Return a rank's parts of several global batches, each as `batch` returns it.

        Args:
            indices: Numbers of the global batches, at least one.
            rank: See `batch`.
            world_size: See `batch`.
        """
        self._check(rank, world_size)
        for index in (indices[0], indices[-1]):
            if not 0 <= index < self.batch_count:
                raise PositionPastEndError(
                    f"batch {index} was requested, but the epoch has {self.batch_count} from "
                    f"position {self.base}",
                    position=index,
                )
        size = self.global_batch_size
        start, stop = _share(rank, world_size, size)
        loss_scale = (stop - start) * world_size / size
        batches = []
        for index in indices:
            position = self.base + index * size
            if position + size > self.sample_count:
                batches.append(self._last_batch(index, rank, world_size))
                continue
            batches.append(
                RankBatch(
                    index=index,
                    position=position,
                    next_position=position + size,
                    global_sample_count=size,
                    start=position + start,
                    stop=position + stop,
                    pad_positions=(),
                    loss_scale=loss_scale,
                )
            )
        return batches

    def _last_batch(self, index: int, part: int, parts: int) -> RankBatch:
        """Return a rank's part of a batch that is not full."""
        position = self.base + index * self.global_batch_size
        count = self.sample_count - position
        start, stop = _share(part, parts, self.row_count(count))
        own_start, own_stop = min(start, count), min(stop, count)
        return RankBatch(
            index=index,
            position=position,
            next_position=position + count,
            global_sample_count=count,
            start=position + own_start,
            stop=position + own_stop,
            pad_positions=tuple(position + row % count for row in range(max(start, count), stop)),
            loss_scale=(own_stop - own_start) * parts / count,
        )

    def _check(self, rank: int, world_size: int) -> None:
        check_range("world_size", world_size, low=1, high=1 << 31)
        check_range("rank", rank, low=0, high=world_size)
        if world_size > self.global_batch_size:
            raise BadArgumentError(
                f"world size {world_size} needs a global batch of at least {world_size} samples, "
                f"but global_batch_size is {self.global_batch_size}",
                field="global_batch_size",
            )

    def row_count(self, count: int) -> int:
        """Return the rows of a global batch of `count` samples, pads included."""
        return self.global_batch_size if self.end is EndMode.PAD else count


def _share(part: int, parts: int, count: int) -> tuple[int, int]:
    return part * count // parts, (part + 1) * count // parts


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """Where a position is delivered.

    Attributes:
        index: Number of the global batch, counted from the plan's base.
        rank: The rank that gets it.
        row: Its row in the rank's batch; rows that fill up a batch come last.
    """

    index: int
    rank: int
    row: int


def find_rows(plan: EpochPlan, position: int, *, world_size: int) -> tuple[Row, ...]:
    """Return all rows that hold a position, also those that repeat it to fill up the last batch.

    Args:
        plan: How the epoch is cut.
        position: In [0, `plan.sample_count`).
        world_size: Number of ranks.

    Returns:
        The rows, rising; empty for a position that is before the base or dropped.

    Raises:
        BadArgumentError: World size and batch size do not fit together.
    """
    index, slot = divmod(position - plan.base, plan.global_batch_size)
    if not 0 <= index < plan.batch_count:
        return ()
    # Checks the world size, by which the code below divides.
    count = plan.batch(index, rank=0, world_size=world_size).global_sample_count
    row_count = plan.row_count(count)

    def start(rank: int) -> int:
        return _share(rank, world_size, row_count)[0]

    found = []
    for each in range(slot, row_count, count):
        rank = bisect_right(range(world_size), each, key=start) - 1
        found.append(Row(index, rank, each - start(rank)))
    return tuple(sorted(found))
