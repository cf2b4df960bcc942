"""Length buckets: windows of the order are sorted by length, so that batches need little padding.

The stage is `LengthBuckets` in requests, and `buckets` in tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property

from headrace.caches import LruCache
from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import (
    LEAST_BUCKETS,
    MOST_BUCKET_SAMPLES,
    MOST_BUCKETS,
    Buckets,
    OrderSpec,
    Skips,
    Token,
    buckets_text,
    split_buckets,
)
from headrace.server.datasets.order_stage import NamedStage
from headrace.server.datasets.served import Lengths, Served
from headrace.server.order_stages.buckets.bucket_finder import BucketFinder
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.stream_request import (
    Readable,
    ReadRequest,
    WantedOrder,
    check_range,
    start_of,
    wanted_order,
)
from headrace.server.stream.order_plugs import OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics
from headrace.v1.buckets_pb2 import LengthBuckets

# Each sample that is looked up may need another window to be sorted, which takes some milliseconds.
_LOOKED_UP = 256
# The most jobs whose windows are kept.
_MAX_FINDERS = 16


class Bucketed(NamedStage):
    """What a stream reads, with windows sorted by length.

    Args:
        inner: What it reads as it is ordered.
        buckets: The number of units that are sorted together.
        lengths: The lengths of samples.
        text: What tokens say about it.
        finders: The finders of all jobs.
        has_units: Whether the request asks for buckets itself, which have units.
    """

    def __init__(
        self,
        inner: Served,
        buckets: int,
        lengths: Lengths,
        text: str,
        *,
        finders: LruCache[Hashable, BucketFinder],
        has_units: bool,
    ) -> None:
        super().__init__(inner, "buckets", text)
        self._buckets = buckets
        self._lengths = lengths
        self._finders = finders
        self._has_units = has_units

    @cached_property
    def readable(self) -> Readable:
        """Return what requests are checked against."""
        return replace(super().readable, has_units=self._has_units)

    @property
    def most_looked_up(self) -> int:
        """Return the most samples whose positions one call may ask for."""
        return min(_LOOKED_UP, self.inner.most_looked_up)

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return the finder for the order of a spec; streams with equal specs share it."""
        ordered, unskipped = self.inner.finder(spec, skips), self.inner.unskipped_finder(spec)
        return self._finders.get_once(
            (id(ordered), spec, self._buckets),
            lambda: BucketFinder(
                Buckets(
                    *(spec.seed, spec.shuffle, spec.lanes, spec.unit),
                    ordered.sample_count,
                    self._buckets,
                ),
                ordered,
                unskipped,
                lengths=self._lengths.of_samples,
                sample_bytes=self.raw_bytes // max(1, ordered.sample_count),
            ),
        )


class Plug(OrderPlug):
    """Sorts windows by length, if a request or its token asks for it."""

    name = "buckets"
    options = LengthBuckets
    words = None
    after = ("skips",)

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._finders: LruCache[Hashable, BucketFinder] = LruCache(_MAX_FINDERS)

    def reading(self, served: Served, request: ReadRequest) -> Served:
        """Return what is sorted, if the request or its token asks for it.

        Raises:
            BadArgumentError: There cannot be such buckets.
            TokenSpecChangedError: The token is for others.
        """
        has_units = request.options(LengthBuckets) is not None
        wanted = wanted_order(request, has_units=has_units)
        buckets = _checked(request, wanted, sample_count=served.readable.sample_count)
        lengths = served.lengths(field="buckets")
        text = buckets_text(buckets, _digest(lengths, request.token))
        finders = self._finders
        return Bucketed(served, buckets, lengths, text, finders=finders, has_units=has_units)


def _checked(request: ReadRequest, wanted: WantedOrder, *, sample_count: int) -> int:
    """Return the number of units to sort by length together."""
    options, token = request.options(LengthBuckets), request.token
    buckets = 0 if options is None else options.unit_count
    if token is not None:
        known, _ = split_buckets(token.stage("buckets"))
        if options is not None and buckets != known:
            found = f"buckets={known}" if known else "a run without buckets"
            raise TokenSpecChangedError(
                f"the token is for {found}, but buckets={buckets} is requested; request the "
                "token's, or start over",
                field="buckets",
            )
        buckets = known
    check_range("buckets", buckets, low=LEAST_BUCKETS, high=MOST_BUCKETS + 1)
    unit, size = wanted.order.unit, wanted.global_batch_size
    if unit % size:
        raise BadArgumentError(
            f"buckets have {unit} samples (order.unit), but the global batch size is {size}; it "
            "must divide them, so that each batch comes from one bucket",
            field="global_batch_size",
        )
    _, position = start_of(request)
    if position % size and position < sample_count // unit * unit:
        raise BadArgumentError(
            f"position {position} is inside a batch of {size} samples of similar length; with "
            f"buckets, start at a multiple of {size}, or give a global_batch_size that divides it",
            field="global_batch_size",
        )
    if buckets * unit > MOST_BUCKET_SAMPLES:
        raise BadArgumentError(
            f"buckets is {buckets}, but {buckets} batches of {unit} have {buckets * unit} samples "
            f"to sort together; there must be at most {MOST_BUCKET_SAMPLES}",
            field="buckets",
        )
    return buckets


def _digest(lengths: Lengths, token: Token | None) -> str:
    digest = lengths.digest
    _, found = split_buckets("" if token is None else token.stage("buckets"))
    if found not in {"", digest}:
        raise TokenSpecChangedError(
            f"the token is for samples sorted by the lengths {found}, but {digest} are "
            "stored; store the token's lengths again with `headrace index --pack-length`, with the "
            "same column or tokenizer, or start over",
            field="buckets",
        )
    return digest
