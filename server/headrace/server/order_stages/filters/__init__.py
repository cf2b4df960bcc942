"""Filters: only the samples that an expression keeps, in the order of a dataset that has no others.

The request's field is `where`, of a request or of a dataset in its mixture, and the name of the
stage in tokens is `filter`.
"""

from __future__ import annotations

from headrace.server.datasets.member import Member
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.order_stages.filters.filters import Filters
from headrace.server.plan.stream_request import Words
from headrace.server.stream.order_plugs import Asker, OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics


class Plug(OrderPlug):
    """Applies the filters of requests."""

    name = "filter"
    words = Words(
        "the samples of the filter", "all samples", "use the where= of the token's run", "where"
    )

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._filters = Filters(parse_turn=turns.setup_turn, search_turn=turns.question_turn)

    def filtered(self, member: Member, where: str, asker: Asker) -> ServedDataset:
        """Return the part of a dataset that an expression keeps; see `Filters.apply`."""
        return self._filters.apply(member, where, asker.caller, wait_s=asker.wait_s)

    def close(self) -> None:
        """Stop the evaluation of filters."""
        self._filters.close()
