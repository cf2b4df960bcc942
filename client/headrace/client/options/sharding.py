"""How global batches are divided among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.arguments import instance_or_none, whole_or_none
from headrace.client.options.deal import Deal, deal_of
from headrace.client.options.stage import OrderStage

_MOST_COUNT = 1 << 62


@dataclass(frozen=True, slots=True)
class Sharding:
    """How each global batch is divided among the ranks of a job.

    Attributes:
        global_batch_size: Samples per batch over all ranks, >= the number of ranks with samples of
            their own; None if ``batch_size`` says how many a rank gets.
        deal: How to deal the samples of each global batch so that every rank has about the same
            work: ``balanced``, or a `Deal`; None to deal them in order.

    Raises:
        BadArgumentError: A value is out of range.
    """

    global_batch_size: int | None = None
    deal: Literal["balanced"] | Deal | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        size = whole_or_none(
            "sharding.global_batch_size", self.global_batch_size, low=1, high=_MOST_COUNT
        )
        object.__setattr__(self, "global_batch_size", size)
        deal_of(self.deal)

    @property
    def stages(self) -> tuple[OrderStage, ...]:
        """The stages of the order that it asks for."""
        deal = deal_of(self.deal)
        return () if deal is None else (deal,)


def sharding_of(sharding: Sharding | None) -> Sharding:
    """Return the sharding that an argument means; None for the defaults."""
    wanted = "Sharding(global_batch_size=…), or None"
    return instance_or_none("sharding", sharding, Sharding, wanted=wanted) or Sharding()
