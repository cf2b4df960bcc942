"""How the samples of a global batch are dealt to ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.arguments import number, shown, whole
from headrace.errors import BadArgumentError
from headrace.order import MAX_ACCUMULATED
from headrace.v1 import shard_service_pb2 as pb

_MOST_COST = 1e9
_MOST_SPEED = 1e3


@dataclass(frozen=True, slots=True)
class Deal:
    """Deal the samples of each global batch so that all ranks have about the same work.

    Which samples a global batch has does not change, nor how many of them a rank gets, so the
    gradient is the same. Costs are made of the lengths that `headrace index --pack-length` stores.

    Attributes:
        length_cost: What each element of a sample costs, >= 0. If both costs are 0, a sample costs
            its elements, and a packed row the sum of the squares of its documents'.
        square_cost: What the square of a sample's elements costs, >= 0; of a packed row, of each
            document's. Attention costs squares.
        speeds: The relative speed of each rank with samples of its own, > 0; none if all are
            equal.
        accumulate: Batches between two steps of the optimizer, over which costs are made even.
    """

    length_cost: float = 0.0
    square_cost: float = 0.0
    speeds: tuple[float, ...] = ()
    accumulate: int = 1

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name in ("length_cost", "square_cost"):
            value = number(f"Deal.{name}", getattr(self, name), least=0, most=_MOST_COST)
            object.__setattr__(self, name, value)
        speeds: object = self.speeds
        if isinstance(speeds, str | bytes) or not isinstance(speeds, Iterable):
            raise BadArgumentError(
                f"Deal.speeds is {shown(speeds)}; expected a number for each rank, such as (1, 2)",
                field="deal",
            )
        found = tuple(
            number(f"Deal.speeds[{at}]", speed, least=1 / _MOST_SPEED, most=_MOST_SPEED)
            for at, speed in enumerate(speeds)
        )
        object.__setattr__(self, "speeds", found)
        accumulate = whole("Deal.accumulate", self.accumulate, low=1, high=MAX_ACCUMULATED + 1)
        object.__setattr__(self, "accumulate", accumulate)

    def to_message(self) -> pb.Deal:
        """Write it down for the wire."""
        return pb.Deal(
            length_cost=self.length_cost,
            square_cost=self.square_cost,
            speeds=self.speeds,
            accumulate=self.accumulate,
        )


def deal_of(deal: object) -> Deal | None:
    """Return the deal that an argument means; None for dealing in order.

    Raises:
        BadArgumentError: The argument is neither.
    """
    if deal is None or isinstance(deal, Deal):
        return deal
    if isinstance(deal, str) and deal == "balanced":
        return Deal()
    raise BadArgumentError(
        f"deal is {shown(deal)}; expected 'balanced', a Deal(…), or None for in order",
        field="deal",
    )
