"""Rank and world size come from the caller, else from the surroundings, never from a guess."""

import pytest

from headrace.client.options.ranks import resolve_ranks
from headrace.errors import BadArgumentError


def test_arguments_win() -> None:
    """What the caller says holds, whatever the environment says."""
    assert (1, 4) == resolve_ranks(1, 4, environment={"RANK": "0", "WORLD_SIZE": "8"})


def test_the_environment_is_the_default() -> None:
    """Torchrun sets RANK and WORLD_SIZE."""
    assert (3, 8) == resolve_ranks(None, None, environment={"RANK": "3", "WORLD_SIZE": "8"})


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "8"}, (5, 6)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
        (
            {
                "RANK": "1",
                "WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "1",
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "1",
            },
            (1, 2),
        ),
    ],
    ids=[
        "Open MPI",
        "a step of srun",
        "a batch script of Slurm",
        "a world of one",
        "torchrun first",
    ],
)
def test_launchers_are_asked_in_turn(environment: dict[str, str], wanted: tuple[int, int]) -> None:
    """Whoever started this process says which rank it is; Slurm only where it started a step."""
    assert wanted == resolve_ranks(None, None, environment=environment)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "3"}, "RANK='3' but no WORLD_SIZE"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE='8' but no RANK"),
        ({"OMPI_COMM_WORLD_RANK": "3"}, "start it with Open MPI"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "the rank below the world size"),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, "the rank below the world size"),
    ],
)
def test_half_an_environment_is_refused(environment: dict[str, str], message: str) -> None:
    """It would be taken for rank 0 of 1, and every rank would read the whole epoch."""
    with pytest.raises(BadArgumentError, match=message):
        resolve_ranks(None, None, environment=environment)


def test_without_either_there_is_one_rank() -> None:
    """A plain script is rank 0 of 1."""
    assert (0, 1) == resolve_ranks(None, None, environment={})


@pytest.mark.parametrize("half", [(1, None), (None, 4)])
def test_half_an_answer_is_refused(half: tuple[int | None, int | None]) -> None:
    """A rank without a world size would read the wrong samples."""
    with pytest.raises(BadArgumentError, match="give both"):
        resolve_ranks(*half, environment={})


def test_an_environment_of_words_is_refused() -> None:
    """The message shows what was found."""
    with pytest.raises(BadArgumentError, match="RANK='zero'"):
        resolve_ranks(None, None, environment={"RANK": "zero", "WORLD_SIZE": "1"})
