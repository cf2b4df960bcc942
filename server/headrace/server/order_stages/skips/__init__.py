"""Skips: samples that are left out, and others of their runs in their places.

The stage is a `Skip` in requests, and `skips` in tokens. A mixture leaves out samples of each of
its datasets itself.
"""

from __future__ import annotations

from headrace.errors import BadArgumentError
from headrace.order import OrderSpec, Skips, Token, check_within
from headrace.server.datasets.order_stage import NamedStage
from headrace.server.datasets.served import Served
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.skip_lists import (
    LIST_LIMITS,
    Lists,
    check_adoption,
    digest_of,
    found_list,
    list_message,
)
from headrace.server.plan.stream_request import ReadRequest
from headrace.server.stream.order_plugs import OrderPlug
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.skips_pb2 import Skip
from headrace.v1.stages import packed


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
        start.stages.append(packed(Skip(list=list_message(self._skips))))


class Plug(OrderPlug):
    """Leaves out samples, if a request or its token asks for it."""

    name = "skips"
    options = Skip
    words = None
    limits = LIST_LIMITS

    def reading(self, served: Served, request: ReadRequest) -> Served:
        """Return what is left, if the request or its token asks for it.

        Raises:
            BadArgumentError: A list is not valid, or the request reads a mixture.
            SkipsNotFoundError: A list is given by its digest, but the server does not have it.
            TokenSpecChangedError: It differs from the token's list, and may not be adopted.
        """
        options = request.options(Skip)
        if not request.dataset:
            if options is None:
                return served
            raise BadArgumentError(
                "the request has skips, but names no dataset of its own; give each dataset of the "
                "mixture its own",
                field="skips",
            )
        skips = _wanted(options, request.token, served.skip_lists)
        check_within(skips, served.dataset.sample_count, dataset=served.name)
        return served if skips is None else Skipped(served, skips)


def _wanted(options: Skip | None, token: Token | None, lists: Lists) -> Skips | None:
    known = pb.SkipList(digest="" if token is None else token.stage("skips"))
    wanted = found_list(known if options is None else options.list, lists, field="skips")
    if token is not None and options is not None and digest_of(wanted) != known.digest:
        given = options.token_list if options.HasField("token_list") else known
        found = found_list(given, lists, field="token_skips")
        check_adoption(wanted, found, token, allow_new_skips=options.allow_new_list)
    return wanted
