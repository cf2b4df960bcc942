"""Claims about whose turn it is: what a server keeps of its callers is bounded."""

from __future__ import annotations

from headrace.server.stream.schedule import _MOST_CALLERS, _ByCaller


def test_a_caller_keeps_what_is_its_own() -> None:
    """Calls of one caller share one object, and those of others have another."""
    kept = _ByCaller(object)

    assert kept.of("a") is kept.of("a")
    assert kept.of("a") is not kept.of("b")


def test_callers_that_come_for_the_first_time_take_no_memory_forever() -> None:
    """An attacker with a network of addresses is as many callers; the oldest are forgotten."""
    kept = _ByCaller(object)
    first = kept.of("first")
    for number in range(2 * _MOST_CALLERS):
        kept.of(str(number))

    assert kept._kept.cache_info().currsize == _MOST_CALLERS
    assert first is not kept.of("first")
