"""What a process remembers of lanes that cannot be used."""

from __future__ import annotations

import logging

import pytest

from headrace.client.transports.lane.refusals import RETRY_S, Refusals


def test_a_lane_is_tried_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """The reason is given until then; it is logged once, and never for servers without a lane."""
    now = 100.0
    refusals = Refusals(lambda: now)
    with caplog.at_level(logging.WARNING):
        assert "" == refusals.why_not("a:1")
        refusals.note("a:1", "filtered", is_offered=True)
        refusals.note("b:1", "none here", is_offered=False)
        now += RETRY_S - 1
        assert ("filtered", "none here") == (refusals.why_not("a:1"), refusals.why_not("b:1"))
        now += 1
        assert ("", "") == (refusals.why_not("a:1"), refusals.why_not("b:1"))
        refusals.note("a:1", "filtered", is_offered=True)

    assert 300 == RETRY_S
    assert ["a:1"] == [record.args[0] for record in caplog.records if record.args]  # type: ignore[index] # a tuple
