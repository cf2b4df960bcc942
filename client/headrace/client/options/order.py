"""How far samples are shuffled, and in how many lanes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.arguments import flag, instance_or_none, whole, whole_or_none
from headrace.order import DEFAULT_RUN_BYTES, DEFAULT_SHUFFLE_BYTES, OrderSpec

_MOST_BYTES = 1 << 62
_MOST_COUNT = 1 << 42


@dataclass(frozen=True, slots=True)
class Order:
    """How samples are shuffled, and what a server reads and holds for it.

    Attributes:
        run_bytes: Bytes of the neighbouring samples that are read together, in [1, 2**42): whole
            blocks, at least one. Smaller runs shuffle better and take more reads.
        shuffle_bytes: Bytes of the samples that are shuffled together, and that a server holds in
            memory for that, in each lane; 0 shuffles the whole epoch at once. What fits is
            shuffled uniformly.
        shuffle_samples: The same limit in samples, in [0, 2**42); 0 for none.
        lanes: How many parts of the data are shuffled separately, each of which one replica can
            serve, in [1, 64]; with several, each rank first asks the replica that its lane
            prefers. As many as replicas is best.
        unit: Consecutive samples that the lanes share, at least as many as lanes; None for the
            global batch size, or the token's. It matters only with several lanes.

    Raises:
        BadArgumentError: A value is out of range.
    """

    run_bytes: int = DEFAULT_RUN_BYTES
    shuffle_bytes: int = DEFAULT_SHUFFLE_BYTES
    shuffle_samples: int = 0
    lanes: int = 1
    unit: int | None = None

    def __post_init__(self) -> None:
        """Refuse what nobody can mean."""
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

    def spec(self, *, seed: int, shuffle: bool, unit: int | None = None) -> OrderSpec:
        """Return the order that a dataset's arguments name.

        Args:
            seed: The seed of everything random, >= 0.
            shuffle: False for storage order.
            unit: The unit of the lanes, where this has none; None where it is not known yet.

        Raises:
            BadArgumentError: One is out of range.
        """
        return OrderSpec(
            seed=whole("seed", seed, low=0),
            shuffle=flag("shuffle", shuffle),
            run_bytes=self.run_bytes,
            shuffle_bytes=self.shuffle_bytes,
            shuffle_samples=self.shuffle_samples,
            lanes=self.lanes,
            unit=self.unit or unit or self.lanes,
        )


def order_of(order: Order | None) -> Order:
    """Return the order that an argument means; None for the defaults."""
    wanted = "Order(shuffle_bytes=…), or None"
    return instance_or_none("order", order, Order, wanted=wanted) or Order()
