"""Tests of the open streams of a server."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack

import pytest

from headrace.errors import HeadraceError, RebalanceError, UnauthenticatedError
from headrace.server.access.callers import Caller
from headrace.server.datasets.versions import Retirement
from headrace.server.stream.open_streams import GRACE_S, OpenStream, OpenStreams


def test_a_caller_has_its_share_of_the_processors() -> None:
    """With as many streams as its part of them, however many others have; none left, it has all."""
    streams = OpenStreams(100)
    one, many = (Caller(name, frozenset("*")) for name in ("one", "many"))
    with ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(streams.admit(many))
        with streams.admit(one):
            assert streams.are_within_share(one, 2)
            assert not streams.are_within_share(many, 2)
            with streams.admit(one):
                assert not streams.are_within_share(one, 2)
        assert streams.are_within_share(many, 64)
    with streams.admit(one), streams.admit(one):
        assert streams.are_within_share(one, 2)


class _Stream:
    """A stream that is told to end, and whose client does not read."""

    def __init__(self, expires_at: float = math.inf) -> None:
        self.expires_at = expires_at
        self.errors: list[str] = []

    def interrupt(self, error: HeadraceError) -> None:
        self.errors.append(error.reason)


def test_a_stream_whose_client_does_not_read_is_cut() -> None:
    """It is told that its time is over, and cut when it has not ended in time."""
    streams, cuts, stream = OpenStreams(1), [0], _Stream(time.monotonic())
    with streams.opened(lambda _: cuts.append(1), lambda: None) as opened:
        streams.begin(opened, stream, ())
        streams.look(0)
        told = cuts.copy()
        opened.look(time.monotonic() + GRACE_S, access_changes=0)
    streams.look(0)

    assert (["REBALANCE"], [0], [0, 1]) == (stream.errors, told, cuts)


def test_a_caller_that_loses_access_while_its_stream_is_set_up_is_cut() -> None:
    """Access may be lost from the moment at which the caller is identified."""
    cuts: list[int] = []
    opened = OpenStream(lambda _: cuts.append(1), lambda: UnauthenticatedError("it is gone"))
    now = time.monotonic()
    opened.look(now, access_changes=3)
    opened.look(now + 2 * GRACE_S, access_changes=3)

    assert [1] == cuts


def test_access_is_checked_again_only_when_callers_have_changed() -> None:
    """A look costs nothing while the callers stay the same."""
    checks: list[int] = []
    opened = OpenStream(lambda _: None, lambda: checks.append(1))
    for changes in (0, 0, 0, 1, 1):
        opened.look(time.monotonic(), access_changes=changes)

    assert [1, 1] == checks


def test_a_stream_of_a_dataset_that_was_taken_away_meanwhile_does_not_begin() -> None:
    """Its dataset was retired while it was set up; nobody waits for it afterwards."""
    streams, retired = OpenStreams(1), Retirement("d")
    streams.end_dataset(retired, lambda: RebalanceError("it was reopened"))
    with streams.opened(lambda _: None, lambda: None) as opened, pytest.raises(RebalanceError):
        streams.begin(opened, _Stream(), [retired])

    assert streams.wait_dataset(retired, time.monotonic())


def test_others_are_here_while_they_have_streams_and_a_moment_later() -> None:
    """A caller does not count among its own others, however many streams it has opened."""
    streams = OpenStreams(4)
    a, b = Caller("a"), Caller("b")
    with streams.admit(a, "host", ""), streams.admit(a, "host", ""):
        assert [False, True] == [streams.are_others_here(name) for name in ("a", "b")]
    assert [False, True] == [streams.are_others_here(name) for name in ("a", "b")]

    with streams.admit(b, "host", ""):
        assert streams.are_others_here("a")
    with streams.admit(a, "host", ""):
        pass
    assert [True, True, True] == [streams.are_others_here(name) for name in ("a", "b", "c")]
