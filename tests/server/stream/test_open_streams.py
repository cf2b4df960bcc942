"""Tests of the open streams of a server."""

from __future__ import annotations

from contextlib import ExitStack

from headrace.server.access.callers import Caller
from headrace.server.stream.open_streams import OpenStreams


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
