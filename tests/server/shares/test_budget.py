"""Tests of the bytes that streams share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgumentError
from headrace.server.shares import Budget, Holder, Place, Share, ShortError
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import small_table, write_dataset
from support.streams import streams_of
from support.threads import at_once
from support.waiting import seconds_until, until

_WAIT_S = 30.0


def _nobody() -> None:
    raise AssertionError("called back")


def _holder(
    budget: Budget, caller: str, held: int = 0, recall: Callable[[], None] = _nobody
) -> Holder:
    holder = budget.join(caller, recall)
    assert budget.try_take(holder, held)
    return holder


def _is_granted(place: Place) -> bool:
    return place.is_granted


def test_bytes_are_lent_until_there_are_none() -> None:
    """One stream may have all that nobody else wants, and not a byte more."""
    budget = Budget(100)
    one, other = _holder(budget, "a", 100), _holder(budget, "b")

    assert not budget.try_take(other, 1)
    budget.give(one, 30)
    assert budget.try_take(other, 30)
    assert not budget.try_take(one, 1)
    assert (100, 70, 30) == (budget.held_bytes, budget.held_of("a"), budget.held_of("b"))


def test_who_asks_within_its_share_goes_first() -> None:
    """A caller that holds much waits behind one that holds little, whoever came first."""
    budget = Budget(100)
    greedy, modest = _holder(budget, "a", 60), _holder(budget, "b", 40)
    budget.give(modest, 40)
    filler = _holder(budget, "a", 40)
    with budget.line(greedy, 10) as later, budget.line(modest, 20) as first:
        budget.give(filler, 10)
        assert (False, False) == (_is_granted(first), _is_granted(later))
        budget.give(filler, 10)
        assert (True, False) == (_is_granted(first), _is_granted(later))
        budget.give(filler, 10)
        assert _is_granted(later)


def test_nobody_overtakes_a_large_wish() -> None:
    """Bytes gather for who is first in the line, though others would be content with less."""
    budget = Budget(100)
    one, other = _holder(budget, "a", 50), _holder(budget, "a", 50)
    large, small = _holder(budget, "a"), _holder(budget, "a")
    with budget.line(large, 60) as first, budget.line(small, 40) as second:
        budget.give(one, 50)
        assert (False, False) == (_is_granted(first), _is_granted(second))
        assert not budget.try_take(one, 50)
        budget.give(other, 50)
        assert (True, True) == (_is_granted(first), _is_granted(second))


def test_what_is_lent_is_called_back() -> None:
    """Who waits within its share gets it: the stream that holds most beyond its own must leave."""
    budget = Budget(100)
    called = list[str]()
    holders = {
        name: _holder(budget, "greedy", held, lambda name=name: called.append(name))  # type: ignore[misc]  # a default binds
        for name, held in {"most": 60, "more": 30, "least": 10}.items()
    }
    with budget.line(_holder(budget, "modest"), 50) as place:
        while not called:
            assert not place.wait()
        assert ["most"] == called
        budget.leave(holders["most"])
        assert place.wait()


def test_nobody_is_called_back_for_a_wish_beyond_a_share() -> None:
    """Who wants more than its share waits until it is free."""
    budget = Budget(100)
    _holder(budget, "a", 60)
    with budget.line(_holder(budget, "b"), 51) as place:
        assert not any(place.wait() for _ in range(6))


def test_a_place_that_is_given_up_lets_the_next_one_in() -> None:
    """A stream that ends while it waits stops nobody."""
    budget = Budget(100)
    _holder(budget, "a", 50)
    with budget.line(_holder(budget, "b"), 40) as next_one:
        assert _is_granted(next_one)
    with budget.line(_holder(budget, "b"), 60) as first:
        second = budget.line(_holder(budget, "b"), 55)
        assert not _is_granted(first)
        with second:
            assert not _is_granted(second)
    assert not budget.is_wanted


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["take", "give", "line", "leave"]),
            st.integers(0, 60),
        )
    )
)
def test_the_budget_is_never_passed(moves: list[tuple[int, str, int]]) -> None:
    """Whatever streams ask for and give back, all have no more than there is, and none is lost."""
    budget = Budget(100)
    holders = [budget.join(f"caller {number % 2}", lambda: None) for number in range(5)]
    places: dict[int, Place] = {}
    for number, kind, size in moves:
        holder = holders[number]
        if kind == "take":
            budget.try_take(holder, size)
        elif kind == "give":
            budget.give(holder, min(size, holder.held))
        elif kind == "line" and number not in places:
            places[number] = budget.line(holder, size)
        elif kind == "leave" and number in places:
            budget.leave_line(places.pop(number))
        assert 0 <= budget.held_bytes <= 100
        assert budget.held_bytes == sum(one.held for one in holders)
    for place in places.values():
        budget.leave_line(place)
    for holder in holders:
        budget.leave(holder)
    assert 0 == budget.held_bytes


def test_a_share_holds_what_waits_and_what_is_made() -> None:
    """What is kept stays held until it is sent, and is given back then."""
    budget = Budget(10_000)
    share = Share(budget, message_bytes=100)

    share.claim(3000)
    assert share.held >= 3000 + 2 * 100
    share.keep(2000)
    assert share.held >= 2000
    share.claim(3000)
    assert share.held >= 5000
    share.drop()
    share.sent(2000)
    share.close()
    assert 0 == budget.held_bytes


def test_what_is_still_made_stays_claimed() -> None:
    """Of two that are made, what the second takes is not given to others with the first's rest."""
    budget = Budget(1000)
    share, other = Share(budget), Share(budget)
    share.claim(900)
    share.keep(100, making=300)

    with pytest.raises(ShortError):
        other.claim(700)
    share.claim(300)
    share.keep(300)
    share.sent(400)
    other.claim(700)


def test_a_batch_that_never_fits_is_refused() -> None:
    """More than the whole budget is INVALID_ARGUMENT at once; as much as it is waited for."""
    budget = Budget(1000)
    other, share = Share(budget, "a"), Share(budget, "b")
    other.claim(500)

    with pytest.raises(ShortError):
        share.claim(1000)
    with pytest.raises(BadArgumentError, match=r"needs 1001 bytes .* may use 1000"):
        share.claim(1001)


def test_a_stream_waits_for_its_own_messages_too() -> None:
    """What a stream needs shrinks as its own messages leave, and then it has its turn."""
    budget = Budget(1000)
    share = Share(budget)
    share.claim(600)
    share.keep(600)
    with pytest.raises(ShortError):
        share.claim(600)

    with share.line(600) as place:
        assert not place.wait()
        share.sent(200)
        assert place.wait()
    share.claim(600)


def test_who_waits_holds_nothing_that_others_wait_for() -> None:
    """What was claimed for a batch that is dropped is there for others while its stream waits."""
    budget = Budget(1000)
    one, other = Share(budget), Share(budget)
    one.claim(400)
    other.claim(400)
    with pytest.raises(ShortError):
        one.claim(700)

    with one.line(700) as place:
        assert 500 == budget.held_bytes
        other.claim(500)
        other.close()
        assert place.wait()


def test_a_stream_that_ends_leaves_the_line_at_once() -> None:
    """Its memory would be missing to others until it looks again, a quarter of a second later."""
    budget = Budget(1000)
    one, other = Share(budget), Share(budget)
    one.claim(400)
    other.claim(500)
    began = time.monotonic()

    for _ in range(20):
        # The first is woken while it waits, the others before they wait.
        with one.line(700) as place:
            threading.Timer(0.01, one.wake).start()
            assert not place.wait()

    assert time.monotonic() - began < 20 * 0.25 / 2


def test_streams_that_each_hold_half_go_on() -> None:
    """Eight streams, each of whose batches takes half of all, make and send them all."""
    budget = Budget(1000)

    def stream(_: int) -> None:
        share = Share(budget)
        for _ in range(20):
            for making in (300, 500):
                try:
                    share.claim(making)
                except ShortError:
                    share.drop()
                    with share.line(making) as place:
                        while not place.wait():
                            pass
            share.keep(400)
            share.sent(400)
        share.close()

    at_once(stream, range(8), timeout_s=_WAIT_S)

    assert 0 == budget.held_bytes


def test_a_cancelled_stream_stops_waiting_for_memory_at_once(tmp_path: Path) -> None:
    """What it holds is then there for others."""
    url = str(tmp_path / "small")
    write_dataset(url, small_table(1000), shard_samples=[1000])
    budget = Budget(1 << 20)
    other = Share(budget)
    other.claim((1 << 20) - 4096)
    request = pb.ReadBatchesRequest(
        dataset="small", global_batch_size=500, world_size=1, epoch_start=pb.EpochStart()
    )
    waited_s = 0.0
    with streams_of(url) as streams:
        for _ in range(16):
            stream = streams.open(request, share=Share(budget))
            reader = threading.Thread(target=lambda: list(stream.messages()))  # noqa: B023 - joined below
            reader.start()
            assert until(lambda: budget.is_wanted, every_s=0.001)
            stream.cancel()
            waited_s += seconds_until(lambda: not reader.is_alive())  # noqa: B023 - called at once

    # It would be an eighth of a second each in the mean.
    assert waited_s < 16 / 8 / 2
