"""The ranks that global batches go to, and how a stage of the order may deal to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order import EndMode, EpochPlan, RankBatch, Row
from headrace.server.plan.find_samples import BatchPlaces


class Ranks(NamedTuple):
    """The ranks to which global batches are dealt.

    Attributes:
        global_batch_size: The number of samples in a global batch.
        world_size: The number of ranks.
        end: How to handle an incomplete last batch.
    """

    global_batch_size: int
    world_size: int
    end: EndMode


class Dealing(Protocol):
    """Deals the samples of global batches to ranks otherwise than in order."""

    def find(
        self, epoch: int, batches: Sequence[RankBatch], rank: int
    ) -> tuple[list[BatchPlaces], list[NDArray[np.int64]]]:
        """Return a rank's samples in global batches, and their positions."""

    def most_rows(self, rank: int, in_order: int) -> int:
        """Return the most samples of a batch for a rank, given how many it gets in order."""

    def is_dealt(self, batch: RankBatch) -> bool:
        """Return whether it deals a global batch; else that is dealt in order."""

    def rows(self, epoch: int, plan: EpochPlan, position: int) -> tuple[Row, ...]:
        """Return where the sample at a position goes, as `headrace.order.find_rows` does."""
