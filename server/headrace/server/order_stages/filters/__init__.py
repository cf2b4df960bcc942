"""Filters: only the samples that an expression keeps, in the order of a dataset that has no others.

The stage is a `Where`, of a request or of a dataset in its mixture, and `filter` in tokens.
"""

from __future__ import annotations

from headrace.errors import BadArgumentError
from headrace.server.datasets.member import Member
from headrace.server.datasets.served import Served
from headrace.server.order_stages.filters.filters import Filters
from headrace.server.plan.stream_request import ReadRequest, Words
from headrace.server.stream.order_plugs import Asker, OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics
from headrace.v1.filters_pb2 import Where


class Plug(OrderPlug):
    """Applies the filters of requests."""

    name = "filter"
    options = Where
    narrows = True
    words = Words(
        "the samples of the filter", "all samples", "use the where= of the token's run", "where"
    )

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._filters = Filters(parse_turn=turns.setup_turn, search_turn=turns.question_turn)

    def narrowed(self, member: Member, options: Where, asker: Asker) -> Member:
        """Return the part of a dataset that an expression keeps; see `Filters.apply`."""
        return self._filters.apply(member, options.expression, asker.caller, wait_s=asker.wait_s)

    def reading(self, served: Served, request: ReadRequest) -> Served:
        """Return what a request reads, filtered already.

        Raises:
            BadArgumentError: It has a filter, but names no dataset of its own.
        """
        if request.options(Where) is not None and not request.dataset:
            raise BadArgumentError(
                "the request has a filter, but names no dataset of its own; give each dataset of "
                "the mixture its own",
                field="where",
            )
        return served

    def close(self) -> None:
        """Stop the evaluation of filters."""
        self._filters.close()
