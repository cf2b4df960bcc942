"""What a client asks for, as one frozen value."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from headrace.client.options.stage import OrderStage, Stage
from headrace.errors import BadArgumentError, PositionPastEndError
from headrace.order import EndMode, OrderSpec
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed

_END_MODES = {
    EndMode.DROP_LAST: pb.END_MODE_DROP_LAST,
    EndMode.UNEVEN: pb.END_MODE_UNEVEN,
    EndMode.PAD: pb.END_MODE_PAD,
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The batches that one rank reads, wherever they start.

    Attributes:
        dataset: Name of the dataset on the server; empty if a stage draws from several.
        order: The order of samples.
        global_batch_size: Samples of a batch over all ranks.
        rank: This rank, in [0, world_size); ranks with the same samples are one here.
        world_size: Number of ranks, >= 1.
        end: How an incomplete last batch is treated.
        columns: Names of the columns to send; empty for all.
        with_ids: Whether to send sample ids.
        end_epoch: First epoch not to read, or None to read without end.
        batch_stride: Read every ``batch_stride``-th batch of the rank, >= 1.
        batch_offset: The first batch to read in an epoch, in [0, ``batch_stride``).
        stages: What the server does with the order, and with each batch before it sends it.
    """

    dataset: str
    order: OrderSpec
    global_batch_size: int
    rank: int = 0
    world_size: int = 1
    end: EndMode = EndMode.DROP_LAST
    columns: tuple[str, ...] = ()
    with_ids: bool = False
    end_epoch: int | None = None
    batch_stride: int = 1
    batch_offset: int = 0
    stages: tuple[Stage | OrderStage, ...] = ()

    def __post_init__(self) -> None:
        """Refuse impossible coordinates before anything is sent."""
        _require(
            bool(self.dataset or self.stages),
            "dataset",
            repr(self.dataset),
            "a name, as shown by `headrace list`, or a mixture and no name",
        )
        _require(self.world_size >= 1, "world_size", self.world_size, ">= 1")
        _require(
            0 <= self.rank < self.world_size,
            "rank",
            self.rank,
            f"a rank in [0, {self.world_size}), since the world size is {self.world_size}",
        )
        _require(
            self.global_batch_size >= self.world_size,
            "global_batch_size",
            self.global_batch_size,
            f">= {self.world_size}, a sample for each rank with samples of its own",
        )

    def to_request(
        self, *, epoch: int, position: int, token: bytes | None
    ) -> pb.ReadBatchesRequest:
        """Make the request that starts after ``token``, or at a place if there is none.

        Args:
            epoch: The epoch to start in, also with a token.
            position: Number of samples of the epoch to skip; not used with a token.
            token: The resume token of the last batch received, or None.

        Raises:
            PositionPastEndError: ``epoch`` is not before ``end_epoch``.
        """
        request = pb.ReadBatchesRequest(
            dataset=self.dataset,
            order=pb.OrderSpec(**asdict(self.order)),
            global_batch_size=self.global_batch_size,
            rank=self.rank,
            world_size=self.world_size,
            end=_END_MODES[self.end],
            columns=self.columns,
            with_ids=self.with_ids,
            batch_stride=self.batch_stride,
            batch_offset=self.batch_offset,
            stages=[packed(stage.to_message()) for stage in self.stages],
        )
        if token is None:
            request.epoch_start.epoch = epoch
            request.epoch_start.position = position
        else:
            request.resume_token = token
        if self.end_epoch is not None:
            request.epoch_count = _remaining(epoch, self.end_epoch)
        return request


def _remaining(epoch: int, end_epoch: int) -> int:
    if epoch >= end_epoch:
        raise PositionPastEndError(
            f"epoch {epoch} was requested, but the run ends before epoch {end_epoch}: give "
            "more epochs, or epochs='same' to read the same epoch in each loop"
        )
    return end_epoch - epoch


def _require(holds: bool, field: str, value: object, wanted: str) -> None:  # noqa: FBT001 - an assertion with a message
    if not holds:
        raise BadArgumentError(f"{field} is {value}; expected {wanted}", field=field)
