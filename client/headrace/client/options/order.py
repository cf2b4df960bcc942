"""How far samples are shuffled, in how many lanes, and which are batched together."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.arguments import flag, instance_or_none, whole, whole_or_none
from headrace.client.options.stage import OrderStage
from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import (
    DEFAULT_RUN_BYTES,
    DEFAULT_SHUFFLE_BYTES,
    LEAST_BUCKETS,
    MOST_BUCKETS,
    OrderSpec,
    Token,
    buckets_text,
    split_buckets,
)
from headrace.v1 import buckets_pb2

_MOST_BYTES = 1 << 62
_MOST_COUNT = 1 << 42


@dataclass(frozen=True, slots=True)
class LengthBuckets(OrderStage):
    """Sort batches of the order by length together.

    Attributes:
        unit_count: How many; 0 for the token's, or for none.
    """

    unit_count: int
    stage_name = "buckets"

    @property
    def is_asked(self) -> bool:
        """Whether requests ask for it."""
        return self.unit_count > 0

    def to_message(self) -> buckets_pb2.LengthBuckets:
        """Write the stage down for the wire."""
        return buckets_pb2.LengthBuckets(unit_count=self.unit_count)

    def text(self) -> str:
        """Return what tokens say about it; only the server knows the lengths."""
        return buckets_text(self.unit_count, "")

    def adopted(self, token: Token) -> LengthBuckets:
        """Return the token's, if it is what was asked for."""
        found, _ = split_buckets(token.stage(self.stage_name))
        if self.is_asked and self.unit_count != found:
            raise TokenSpecChangedError(
                f"buckets is {self.unit_count}, but the state has {found or 'none'}; give the "
                "buckets of its run, or start a new run without the state",
                field="buckets",
            )
        return LengthBuckets(found)

    def check(self, *, is_mixture: bool) -> None:
        """Refuse buckets for several datasets."""
        if self.is_asked and is_mixture:
            raise BadArgumentError(
                f"order.buckets is {self.unit_count} for a mixture, but buckets sort the samples "
                "of a single dataset; leave buckets out, or read one dataset",
                field="order",
            )


@dataclass(frozen=True, slots=True)
class Order:
    """How samples are shuffled, and what a server reads and holds in memory for that.

    Attributes:
        run_bytes: Size of the runs of neighbouring samples that are read together, in [1, 2**42):
            whole blocks, at least one. Smaller runs shuffle better and take more reads.
        shuffle_bytes: Size of the samples that are shuffled together, which a server holds in
            memory, in each lane; 0 shuffles the whole epoch at once. Data that fits is shuffled
            uniformly, except at the start of epoch 0.
        shuffle_samples: The same limit in samples, in [0, 2**42); 0 for none.
        lanes: Number of parts of the data that are shuffled separately, in [1, 64]. One replica can
            serve one lane: with several lanes, each rank first asks the replica that its lane
            prefers. The best number is that of the replicas.
        unit: Number of consecutive samples that the lanes share, at least the number of lanes; None
            for the global batch size, or the token's. It matters only with several lanes.
        ramp: Whether epoch 0 starts with small steps, so that the first batch of a run comes early;
            without it, epoch 0 is shuffled as evenly from the start as any other.
        buckets: How many batches to sort by length together, such as 64, so that the samples of a
            batch have similar lengths; their order stays shuffled. None for none, or for the
            loaded state's. Needs the lengths that ``headrace index --pack-length`` stores; not for
            mixtures.
        with_ids: Whether batches say which samples they hold: `Batch.sample_ids`, 8 bytes a sample.

    Raises:
        BadArgumentError: A value is out of range.
    """

    run_bytes: int = DEFAULT_RUN_BYTES
    shuffle_bytes: int = DEFAULT_SHUFFLE_BYTES
    shuffle_samples: int = 0
    lanes: int = 1
    unit: int | None = None
    ramp: bool = True
    buckets: int | None = None
    with_ids: bool = False

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        for field, least, high in (
            ("run_bytes", 1, _MOST_COUNT),
            ("shuffle_bytes", 0, _MOST_BYTES),
            ("shuffle_samples", 0, _MOST_COUNT),
            ("lanes", 1, (1 << 20) + 1),
        ):
            value = whole(f"order.{field}", getattr(self, field), low=least, high=high)
            object.__setattr__(self, field, value)
        unit = whole_or_none("order.unit", self.unit, low=1, high=_MOST_COUNT)
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "ramp", flag("order.ramp", self.ramp))
        buckets = whole_or_none(
            "order.buckets", self.buckets, low=LEAST_BUCKETS, high=MOST_BUCKETS + 1
        )
        object.__setattr__(self, "buckets", buckets)
        object.__setattr__(self, "with_ids", flag("order.with_ids", self.with_ids))

    @property
    def stages(self) -> tuple[OrderStage, ...]:
        """The stages of the order that it asks for."""
        return (LengthBuckets(self.buckets or 0),)

    def spec(self, *, seed: int, shuffle: bool, unit: int | None = None) -> OrderSpec:
        """Return the order that a dataset's arguments name.

        Args:
            seed: The seed of everything random, >= 0.
            shuffle: False for storage order.
            unit: The unit of the lanes if this has none; None if it is not known yet.

        Raises:
            BadArgumentError: A value is out of range.
        """
        return OrderSpec(
            seed=whole("seed", seed, low=0),
            shuffle=flag("shuffle", shuffle),
            run_bytes=self.run_bytes,
            shuffle_bytes=self.shuffle_bytes,
            shuffle_samples=self.shuffle_samples,
            lanes=self.lanes,
            unit=self.unit or unit or self.lanes,
            ramp=self.ramp,
        )


def order_of(order: Order | None) -> Order:
    """Return the order that an argument means; None for the defaults."""
    wanted = "Order(shuffle_bytes=…), or None"
    return instance_or_none("order", order, Order, wanted=wanted) or Order()
