"""Find rank and world size if the caller does not give them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.arguments import whole_or_none
from headrace.errors import BadArgumentError


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The variables that a launcher sets to tell a process its rank.

    Attributes:
        name: The launcher's common name.
        rank: The variable with the rank.
        world_size: The variable with the number of ranks.
        is_always_whole: Whether a variable means nothing without the other. Slurm sets
            ``SLURM_PROCID`` in batch scripts too, which are not ranks; only a step of ``srun`` has
            ``SLURM_STEP_NUM_TASKS``.
    """

    name: str
    rank: str
    world_size: str
    is_always_whole: bool = True


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE"),
    _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", is_always_whole=False),
)

# What Lightning's launcher gives the processes that it starts, which learn their rank later.
_LIGHTNING_MARKS = {"LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"}
_LIGHTNINGS = (
    "Lightning has started it: make the dataset in a hook such as train_dataloader(), and give "
    "rank=trainer.global_rank and world_size=trainer.world_size there; elsewhere "
)


def refuse_alone() -> None:
    """Refuse to read as the only rank of a job if torch.distributed knows of several by now.

    Raises:
        BadArgumentError: It does.
    """
    found = _from_distributed()
    if found is not None and found[1] > 1:
        raise BadArgumentError(
            "the dataset was made before torch.distributed was, and so for rank 0 of 1, but this "
            f"job has {found[1]} ranks, each of which would read all samples: make it after "
            "init_process_group, in Lightning in a hook such as train_dataloader(), or give rank= "
            "and world_size= (0 and 1 if each rank shall read everything)",
            field="rank",
        )


def resolve_ranks(
    rank: int | None, world_size: int | None, *, environment: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Return rank and world size.

    The first source that knows both is used: the arguments, torch.distributed, the variables of
    torchrun (``RANK``, ``WORLD_SIZE``), of Open MPI (``OMPI_COMM_WORLD_RANK``, ``…_SIZE``), and of
    a step of Slurm's ``srun`` (``SLURM_PROCID``, ``SLURM_STEP_NUM_TASKS``). Without any, there is
    one rank.

    Args:
        rank: This rank, or None.
        world_size: Number of ranks, or None.
        environment: The variables; None for those of this process.

    Raises:
        BadArgumentError: Only one of the two is given or set, or the values are impossible.
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
    for launcher in _LAUNCHERS:
        found = _from_launcher(launcher, environment)
        if found is not None:
            return found
    return 0, 1


def _from_launcher(launcher: _Launcher, environment: Mapping[str, str]) -> tuple[int, int] | None:
    rank, world_size = environment.get(launcher.rank), environment.get(launcher.world_size)
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        # With a world size of 1, the rank is 0, even if it is not given.
        if not launcher.is_always_whole or world_size == "1":
            return None
        there, missing = launcher.rank, launcher.world_size
        if rank is None:
            there, missing = missing, there
        advice = _LIGHTNINGS if environment.keys() >= _LIGHTNING_MARKS else ""
        raise BadArgumentError(
            f"the environment has {there}={environment[there]!r} but no {missing}, so this "
            "process's share is unknown; "
            + (advice or f"start it with {launcher.name}, set both, unset {there}, or ")
            + "give rank= and world_size=",
            field="rank",
        )
    try:
        numbers = int(rank), int(world_size)
    except ValueError:
        numbers = -1, 0
    if not 0 <= numbers[0] < numbers[1]:
        raise BadArgumentError(
            f"the environment has {launcher.rank}={rank!r} and {launcher.world_size}="
            f"{world_size!r}; expected numbers, the rank below the world size, or give rank= and "
            "world_size=",
            field="rank",
        )
    return numbers
