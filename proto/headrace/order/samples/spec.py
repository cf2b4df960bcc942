"""The options of one dataset's order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from headrace.errors import BadArgumentError
from headrace.order.basics.checks import check_lanes, check_range

ORDER_VERSION: Final = 3
# Chosen by the measurements in docs/decisions/order-version-2.md.
DEFAULT_RUN_BYTES: Final = 2 << 20
DEFAULT_SHUFFLE_BYTES: Final = 2 << 30

_COUNT_LIMIT: Final = 1 << 42


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """Every option of one dataset's order; equal specs give equal orders.

    Attributes:
        seed: Seed of all permutations, in [0, 2**63).
        shuffle: False gives storage order.
        run_bytes: Bytes in memory of neighbouring samples that are read together, in [1, 2**42);
            runs are whole blocks, at least one.
        shuffle_bytes: Bytes in memory of the samples that a lane shuffles together, in [0, 2**62);
            0 is no limit.
        shuffle_samples: The same limit in samples, in [0, 2**42); 0 is no limit. Without either
            limit the whole epoch is shuffled at once.
        lanes: Parts of an epoch that are shuffled separately, in [1, 2**20].
        unit: Samples that the lanes fill together before the next unit starts, in
            [`lanes`, 2**42). It matters only with several lanes; the best value is the global
            batch size.
        ramp: Whether epoch 0 starts with small steps, so that little is read before the first
            batch; without it, epoch 0 is shuffled as evenly from the start as any other.
        version: Version of the order's specification.
    """

    seed: int = 0
    shuffle: bool = True
    run_bytes: int = DEFAULT_RUN_BYTES
    shuffle_bytes: int = DEFAULT_SHUFFLE_BYTES
    shuffle_samples: int = 0
    lanes: int = 1
    unit: int = 1
    ramp: bool = True
    version: int = ORDER_VERSION

    def __post_init__(self) -> None:
        check_range("seed", self.seed, low=0, high=1 << 63)
        check_range("run_bytes", self.run_bytes, low=1, high=_COUNT_LIMIT)
        check_range("shuffle_bytes", self.shuffle_bytes, low=0, high=1 << 62)
        check_range("shuffle_samples", self.shuffle_samples, low=0, high=_COUNT_LIMIT)
        check_lanes(self.lanes, self.unit)
        if self.version != ORDER_VERSION:
            raise BadArgumentError(
                f"order version is {self.version}, expected {ORDER_VERSION}", field="version"
            )


def spec_differences(wanted: OrderSpec, found: OrderSpec) -> tuple[str, ...]:
    """Name every option in which two specs differ, with both values.

    Args:
        wanted: The spec that was asked for.
        found: The spec that a token holds.

    Returns:
        One phrase for each option, in the order of the fields; empty if the specs are equal.
    """
    return tuple(
        f"{field.name}: {getattr(wanted, field.name)} requested,"
        f" the token has {getattr(found, field.name)}"
        for field in dataclasses.fields(wanted)
        if getattr(wanted, field.name) != getattr(found, field.name)
    )
