"""A state is JSON, and a state that belongs elsewhere is refused in words."""

import json
import re
from dataclasses import replace

import pytest

from headrace.client.state.state import adopt_batch_size, adopt_order, make_state, read_state
from headrace.client.state.subject import OneDataset
from headrace.errors import TokenMalformedError, TokenSpecChangedError
from headrace.order import EndMode, OrderSpec, decode_token
from support.wire import token_at

TOKEN = token_at(3, 8, step=20)


def test_a_state_survives_json() -> None:
    """What state_dict returned, written and read again, gives the token back."""
    state = json.loads(
        json.dumps(make_state(TOKEN, subject=OneDataset(name="d"), end=EndMode.DROP_LAST))
    )

    assert TOKEN == read_state(state)


def test_a_state_says_in_words_what_it_binds() -> None:
    """A person who opens a checkpoint sees where the run stood."""
    spec = make_state(TOKEN, subject=OneDataset(name="d"), end=EndMode.DROP_LAST)["spec"]

    assert isinstance(spec, dict)
    assert ("d", 3, 8, 20, 4) == tuple(
        spec[key] for key in ("dataset", "epoch", "position", "step", "global_batch_size")
    )


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({}, id="empty"),
        pytest.param({"version": 1}, id="no token"),
        pytest.param({"version": 2, "token": ""}, id="unknown version"),
        pytest.param({"version": 1, "token": "no base64!"}, id="no base64"),
        pytest.param({"version": 1, "token": "AAAA"}, id="no token of ours"),
        pytest.param({"version": 1, "token": 7}, id="a number"),
    ],
)
def test_what_is_no_state_is_refused(state: dict[str, object]) -> None:
    """Nothing is adopted from a broken state."""
    with pytest.raises(TokenMalformedError):
        read_state(state)


def test_a_state_of_another_seed_is_refused_with_both_values() -> None:
    """The message names the option, what was wanted and what was found."""
    with pytest.raises(TokenSpecChangedError, match=r"seed.*7.*0|seed.*0.*7"):
        adopt_order(OrderSpec(seed=7), decode_token(TOKEN), unit_is_free=True)


def test_a_free_unit_is_taken_from_the_token() -> None:
    """The unit stays that of the run's begin when the batch size changes."""
    token = replace(decode_token(TOKEN), spec=OrderSpec(unit=64))

    assert OrderSpec(unit=64) == adopt_order(OrderSpec(unit=1), token, unit_is_free=True)


def test_the_global_batch_is_the_tokens_unless_given() -> None:
    """Nothing said: the token's. Said on purpose: the new one."""
    token = decode_token(TOKEN)

    assert 4 == adopt_batch_size(token, batch_size=None, global_batch_size=None, group_count=3)
    assert 9 == adopt_batch_size(token, batch_size=None, global_batch_size=9, group_count=3)
    assert 4 == adopt_batch_size(token, batch_size=2, global_batch_size=None, group_count=2)


@pytest.mark.parametrize(
    ("groups", "remedy"), [(4, "batch_size=1"), (3, "Sharding(global_batch_size=4)")]
)
def test_a_batch_size_that_would_change_the_global_batch_is_refused(
    groups: int, remedy: str
) -> None:
    """The message holds the number that keeps the global batch."""
    with pytest.raises(
        TokenSpecChangedError, match=re.escape(f"the state has 4: give {remedy} to keep it")
    ):
        adopt_batch_size(
            decode_token(TOKEN), batch_size=2, global_batch_size=None, group_count=groups
        )
