"""Skips: samples that are left out, and others of their runs in their places.

The request's fields are `skips`, `token_skips` and `allow_new_skips`, and the name in tokens is
`skips`. A mixture leaves out samples of each of its datasets itself.
"""

from __future__ import annotations

from headrace.order import OrderSpec, Skips, check_within
from headrace.server.datasets.order_stage import NamedStage
from headrace.server.datasets.served import Served
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.skip_lists import list_message, wanted_skips
from headrace.server.plan.stream_request import token_of
from headrace.server.stream.order_plugs import AskedOrder, OrderPlug
from headrace.v1 import shard_service_pb2 as pb


class Skipped(NamedStage):
    """What a stream reads, without some samples.

    Args:
        inner: What it reads with all.
        skips: The samples to leave out.
    """

    def __init__(self, inner: Served, skips: Skips) -> None:
        super().__init__(inner, "skips", skips.digest)
        self._skips = skips

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return an object that finds samples by their positions."""
        assert skips is None
        return self.inner.finder(spec, self._skips)

    def describe(self, start: pb.StreamStart) -> None:
        """Fill in its part of the first message."""
        self.inner.describe(start)
        start.skips.CopyFrom(list_message(self._skips))


class Plug(OrderPlug):
    """Leaves out samples, if a request or its token asks for it."""

    name = "skips"
    fields = ("skips",)
    words = None

    def reading(self, served: Served, asked: AskedOrder) -> Served:
        """Return what is left, if the request or its token asks for it.

        Raises:
            BadArgumentError: A list is not valid.
            SkipsNotFoundError: A list is given by its digest, but the server does not have it.
            TokenSpecChangedError: It differs from the token's list, and may not be adopted.
        """
        request, token = asked.request, token_of(asked.request)
        is_asked = request.HasField("skips") or (token is not None and token.stage("skips"))
        if not is_asked or request.HasField("mixture"):
            return served
        skips = wanted_skips(request, token, served.skip_lists)
        check_within(skips, served.dataset.sample_count, dataset=served.name)
        return served if skips is None else Skipped(served, skips)
