"""Where rank and world size come from when the caller does not say."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.arguments import whole_or_none
from headrace.errors import BadArgumentError


def resolve_ranks(
    rank: int | None, world_size: int | None, *, environment: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Return rank and world size: the arguments, else torch.distributed, else RANK and WORLD_SIZE.

    Args:
        rank: This rank, or None.
        world_size: Number of ranks, or None.
        environment: Looked at last; None means the process's. Without either, one rank of one.

    Raises:
        BadArgumentError: Only one of the two is given, or the environment holds no numbers.
    """
    rank = whole_or_none("rank", rank, low=0)
    world_size = whole_or_none("world_size", world_size, low=1, high=1 << 31)
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise BadArgumentError(
            f"rank={rank} and world_size={world_size}: give both, or neither", field="rank"
        )
    return _from_distributed() or _from_environment(
        os.environ if environment is None else environment
    )


def _from_distributed() -> tuple[int, int] | None:
    import torch.distributed as dist  # noqa: PLC0415 - torch is loaded when it is needed

    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.get_rank(), dist.get_world_size()


def _from_environment(environment: Mapping[str, str]) -> tuple[int, int]:
    rank, world_size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return 0, 1
    try:
        return int(rank), int(world_size)
    except ValueError:
        raise BadArgumentError(
            f"the environment has RANK={rank!r} and WORLD_SIZE={world_size!r}; expected numbers, "
            "or give rank= and world_size=",
            field="rank",
        ) from None
