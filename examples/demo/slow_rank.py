"""Read as a rank of a training with long steps does, until it is killed.

``python -m demo.slow_rank ADDRESS RANK WORLD_SIZE``.
"""

from __future__ import annotations

import sys
import time

from headrace.client import NumpyDataset, Transport

_STEP_S = 0.5
_PREFETCH = Transport(prefetch_bytes=16 << 10)


def main(address: str, rank: str, world_size: str) -> None:
    """Read flights."""
    with NumpyDataset(
        address,
        "flights-train",
        batch_size=512,
        rank=int(rank),
        world_size=int(world_size),
        transport=_PREFETCH,
    ) as dataset:
        for _ in dataset:
            time.sleep(_STEP_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
