"""Even shares: the samples of a global batch are dealt to ranks by their cost.

The stage is a `Deal` in requests. Tokens say nothing about it: a global batch stays the same.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from headrace.caches import LruCache
from headrace.errors import BadArgumentError
from headrace.order import DealSpec, OrderSpec
from headrace.server.datasets.order_stage import OrderStage
from headrace.server.datasets.served import Lengths, Served
from headrace.server.order_stages.dealing.dealer import Dealer, piece_costs, sample_costs
from headrace.server.plan.find_samples import BatchPlaces, Finder
from headrace.server.plan.ranks import Ranks
from headrace.server.plan.stream_request import ReadRequest, batches_of, wanted_order
from headrace.server.stream.order_plugs import OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.dealing_pb2 import Deal

# Each rank's batch needs the samples of all ranks, and of the earlier batches of its step: 640 MiB
# for 2^24 ranks (measured).
_LIMIT = 1 << 22
# Each sample that is looked up may be in another global batch, which is dealt as a whole, after
# those before it in its step: this many samples take about a second.
_LOOKED_UP = 1 << 22
# Each dealer keeps a few megabytes.
_MAX_DEALERS = 16
# One for each rank.
_MOST_SPEEDS = 65_536


class Dealt(OrderStage):
    """What a stream reads, dealt to ranks with even costs.

    Args:
        inner: What it reads in order.
        deal: The options.
        lengths: The lengths of its samples; None if they are packed, or dealt in order.
        dealers: The dealers of all jobs.
        most_looked_up: See `Served`.
    """

    def __init__(
        self,
        inner: Served,
        deal: DealSpec,
        *,
        lengths: Lengths | None,
        dealers: LruCache[Hashable, Dealer],
        most_looked_up: int,
    ) -> None:
        super().__init__(inner)
        self._deal = deal
        self._lengths = lengths
        self._dealers = dealers
        self._most = most_looked_up

    @property
    def most_looked_up(self) -> int:
        """Return the most samples whose positions one call may ask for."""
        return min(self._most, self.inner.most_looked_up)

    def dealing(self, order: OrderSpec, ranks: Ranks, finder: Finder) -> Dealer:
        """Return the dealer of samples to ranks with even costs; the ranks of a job share it."""
        return self._dealers.get_once(
            (self._deal, order, ranks, id(finder)),
            lambda: Dealer(self._deal, order, ranks, finder=finder, costs=self._costs),
        )

    def _costs(self, found: BatchPlaces) -> NDArray[np.float64]:
        pieces = found.pieces
        if pieces is not None:
            return piece_costs(pieces, self._deal)
        assert self._lengths is not None
        return sample_costs(self._lengths.of_samples(found.sample_ids), self._deal)


class Plug(OrderPlug):
    """Deals samples to ranks, if a request asks for it."""

    name = "deal"
    options = Deal
    limits = {"Deal.speeds": _MOST_SPEEDS, "Deal.sizes": _MOST_SPEEDS}  # noqa: RUF012 - read only, as in its base
    after = ("skips", "buckets")

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._dealers: LruCache[Hashable, Dealer] = LruCache(_MAX_DEALERS)

    def reading(self, served: Served, request: ReadRequest) -> Served:
        """Return what is dealt, if the request asks for it.

        Raises:
            BadArgumentError: The options are invalid, or there are no lengths of samples.
        """
        options = request.options(Deal)
        if options is None:
            return served
        deal = _spec(options)
        _check_sizes(deal, request)
        size = wanted_order(request).global_batch_size * deal.accumulate
        if size > _LIMIT:
            raise BadArgumentError(
                f"deal would look at {deal.accumulate} global batches of "
                f"{size // deal.accumulate} samples together; use smaller ones, or less "
                f"accumulate: at most {_LIMIT} samples",
                field="global_batch_size",
            )
        return Dealt(
            served,
            deal,
            lengths=_lengths(served, deal),
            dealers=self._dealers,
            most_looked_up=_LOOKED_UP // size,
        )


def _lengths(served: Served, deal: DealSpec) -> Lengths | None:
    if served.has_pieces and deal.cost:
        raise BadArgumentError(
            f"deal has the cost {deal.cost[:100]!r}, but rows are packed, which cost what their "
            "documents' lengths do; leave the cost out",
            field="deal.cost",
        )
    if served.has_pieces or deal.in_order:
        return None
    return served.lengths(field="deal", cost=deal.cost)


def _check_sizes(deal: DealSpec, request: ReadRequest) -> None:
    batches = batches_of(request)
    if deal.sizes and (batches.order.lanes > 1 or batches.end == pb.END_MODE_PAD):
        found = f"{batches.order.lanes} lanes" if batches.order.lanes > 1 else "batches are padded"
        raise BadArgumentError(
            f"deal has sizes, but {found}; ask for one lane, and for another end of epochs",
            field="deal.sizes",
        )


def _spec(message: Deal) -> DealSpec:
    try:
        return DealSpec(
            length_cost=message.length_cost,
            square_cost=message.square_cost,
            speeds=tuple(message.speeds),
            accumulate=message.accumulate or 1,
            sizes=tuple(message.sizes),
            in_order=message.in_order,
            cost=message.cost,
        )
    except BadArgumentError as error:
        field = f"deal.{error.metadata.get('field', '')}"
        raise BadArgumentError(f"deal: {error.message}", field=field) from error
