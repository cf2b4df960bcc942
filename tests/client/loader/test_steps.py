"""The place of a step is the one that a server's tokens say, wherever a dataset was moved to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import Place
from headrace.client.loader.steps import place_at
from headrace.errors import BadArgumentError
from headrace.order import EndMode, EpochPlan, OrderSpec, Token, decode_token, encode_token

_TOKEN = Token(
    fingerprint="0" * 32,
    spec=OrderSpec(seed=1, unit=4),
    epoch=0,
    position=0,
    global_batch_size=4,
    step=0,
    sample_count=0,
)


@given(st.data())
def test_a_place_is_that_after_as_many_batches(data: st.DataObject) -> None:
    """Counted batch by batch, as a server counts them."""
    count = data.draw(st.integers(1, 30))
    size = data.draw(st.integers(1, count))
    end = data.draw(st.sampled_from(EndMode))
    start = replace(
        _TOKEN,
        epoch=data.draw(st.integers(0, 3)),
        position=data.draw(st.integers(0, count - 1)),
        step=data.draw(st.integers(0, 5)),
        sample_count=data.draw(st.integers(0, 99)),
        global_batch_size=size,
    )
    ahead = data.draw(st.integers(1, 60))

    def plan_from(position: int) -> EpochPlan:
        return EpochPlan(count, position, size, end)

    wanted, plan, index = start, plan_from(start.position), 0
    while not plan.batch_count:
        wanted, plan = replace(wanted, epoch=wanted.epoch + 1, position=0), plan_from(0)
    for _ in range(ahead):
        batch = plan.batch(index, rank=0, world_size=1)
        index += 1
        is_last = index == plan.batch_count
        wanted = replace(
            wanted,
            epoch=wanted.epoch + is_last,
            position=0 if is_last else batch.next_position,
            step=wanted.step + 1,
            sample_count=wanted.sample_count + batch.global_sample_count,
        )
        if is_last:
            plan, index = plan_from(0), 0
    found = place_at(
        start.step + ahead,
        start=Place.after(encode_token(start)),
        plan_from=plan_from,
        first_token=encode_token(_TOKEN),
    )

    assert found.token is not None
    assert wanted == decode_token(found.token)
    assert (wanted.epoch, wanted.position) == (found.epoch, found.position)


def test_an_epoch_without_batches_has_no_steps() -> None:
    """Nothing would ever come."""
    with pytest.raises(BadArgumentError, match=r"no step 2: an epoch of 3 samples has no batch"):
        place_at(
            2,
            start=Place(),
            plan_from=lambda position: EpochPlan(3, position, 4),
            first_token=encode_token(_TOKEN),
        )
