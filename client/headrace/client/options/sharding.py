"""How global batches are divided among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.arguments import instance_or_none, one_of, whole_or_none
from headrace.client.options.deal import Deal, deal_of
from headrace.client.options.stage import OrderStage
from headrace.errors import BadArgumentError

_MOST_COUNT = 1 << 62


@dataclass(frozen=True, slots=True)
class Sharding:
    """How each global batch is divided among the ranks of a job.

    Attributes:
        global_batch_size: Samples per batch over all ranks, >= the number of ranks with samples of
            their own; None if ``batch_size`` says how many a rank gets.
        deal: How to deal the samples of each global batch so that every rank has about the same
            work: ``balanced``, or a `Deal`; None to deal them in order.
        share: Whether ranks of a mesh that get the same batches share one stream on each host.
            ``ring``: one process reads into memory that the others read from, and another takes
            over if it dies. ``broadcast``: the first reads and broadcasts over torch.distributed
            when the loops of all take a batch, or there is an error. ``auto``: a ring where there
            is such memory, otherwise a broadcast where that is possible; `ClientStats` says which,
            and why. None for a stream each.

    Raises:
        BadArgumentError: A value is out of range.
    """

    global_batch_size: int | None = None
    deal: Literal["balanced"] | Deal | None = None
    share: Literal["auto", "ring", "broadcast"] | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        size = whole_or_none(
            "sharding.global_batch_size", self.global_batch_size, low=1, high=_MOST_COUNT
        )
        object.__setattr__(self, "global_batch_size", size)
        deal = deal_of(self.deal)
        given = None if deal is None or deal.sizes is None else sum(deal.sizes.values())
        if size is not None and given not in {None, size}:
            raise BadArgumentError(
                f"Deal.sizes has {given} samples together, but global_batch_size is {size}; "
                "expected the same",
                field="deal",
            )
        one_of("sharding.share", self.share, (None, "auto", "ring", "broadcast"))

    @property
    def stages(self) -> tuple[OrderStage, ...]:
        """The stages of the order that it asks for."""
        deal = deal_of(self.deal)
        return () if deal is None else (deal,)


def sharding_of(sharding: Sharding | None) -> Sharding:
    """Return the sharding that an argument means; None for the defaults."""
    wanted = "Sharding(global_batch_size=…), or None"
    return instance_or_none("sharding", sharding, Sharding, wanted=wanted) or Sharding()
