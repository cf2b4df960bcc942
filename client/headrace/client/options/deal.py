"""How the samples of a global batch are dealt to ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.arguments import flag, instance, number, shown, whole
from headrace.client.options.stage import OrderStage
from headrace.errors import BadArgumentError
from headrace.order import MAX_ACCUMULATED
from headrace.v1 import dealing_pb2

_MOST_COST = 1e9
_MOST_SPEED = 1e3
_MOST_SIZE = 1 << 31


@dataclass(frozen=True, slots=True)
class Deal(OrderStage):
    """Deal the samples of each global batch so that all ranks have about the same work.

    The samples of a global batch stay the same, and so does their number per rank, so the gradient
    is the same. Costs are computed from the lengths that `headrace index --pack-length` stores, or
    from the numbers that `headrace index --cost` does.

    Attributes:
        length_cost: The cost per element, >= 0. If both costs are 0, the cost of a sample is its
            length, and the cost of a packed row is the sum of its documents' squared lengths.
        square_cost: The cost per squared length, >= 0; in a packed row, each document counts by
            itself. The cost of attention is quadratic.
        speeds: The relative speed of each rank with samples of its own, > 0; empty if all are
            equal.
        accumulate: Batches per step of the optimizer, over which costs are balanced.
        sizes: How many samples of each global batch a rank gets, for every rank with samples of its
            own; the sum is the global batch size. None if all get as many.
        balance: Whether to balance costs. Without, samples are dealt in order, for ``sizes`` alone,
            and need no stored lengths.
        cost: A column of whole numbers, such as the patches of an image, which count as its length;
            None for the length itself. Not for packed rows.
    """

    length_cost: float = 0.0
    square_cost: float = 0.0
    speeds: tuple[float, ...] = ()
    accumulate: int = 1
    sizes: Mapping[int, int] | None = None
    balance: bool = True
    cost: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
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
        flag("Deal.balance", self.balance)
        if self.cost is not None:
            instance("Deal.cost", self.cost, str, wanted="the name of a column, or None")
        if self.sizes is not None:
            object.__setattr__(self, "sizes", _checked_sizes(self.sizes))

    def to_message(self) -> dealing_pb2.Deal:
        """Write it down for the wire."""
        return dealing_pb2.Deal(
            length_cost=self.length_cost,
            square_cost=self.square_cost,
            speeds=self.speeds,
            accumulate=self.accumulate,
            sizes=[] if self.sizes is None else list(self.sizes.values()),
            in_order=not self.balance,
            cost=self.cost or "",
        )


def _checked_sizes(sizes: object) -> dict[int, int]:
    if not isinstance(sizes, Mapping) or set(sizes) != set(range(len(sizes))) or not sizes:
        raise BadArgumentError(
            f"Deal.sizes is {shown(sizes)}; expected the samples of every rank with samples of its "
            "own, such as {0: 24, 1: 8}",
            field="deal",
        )
    return {
        rank: whole(f"Deal.sizes[{rank}]", sizes[rank], low=1, high=_MOST_SIZE)
        for rank in range(len(sizes))
    }


def deal_of(deal: object) -> Deal | None:
    """Return the deal that an argument means; None for dealing in order.

    Raises:
        BadArgumentError: The argument is neither a `Deal` nor ``balanced``.
    """
    if deal is None or isinstance(deal, Deal):
        return deal
    if isinstance(deal, str) and deal == "balanced":
        return Deal()
    raise BadArgumentError(
        f"deal is {shown(deal)}; expected 'balanced', a Deal(…), or None to deal them in order",
        field="deal",
    )
