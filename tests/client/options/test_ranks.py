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
