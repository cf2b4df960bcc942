"""What is said of the health of stores."""

from __future__ import annotations

from headrace.server.cache.read_observer import StoreHealth


def _fail(health: StoreHealth, times: int) -> None:
    for _ in range(times):
        health.read("d", seconds=0.0, blocks=0, reason="STORE_UNAVAILABLE")


def test_a_dataset_that_is_opened_again_is_judged_again() -> None:
    """After a reload that was said to serve, three failures say once more that it does not."""
    said: list[tuple[str, bool]] = []
    health = StoreHealth(lambda name, is_healthy: said.append((name, is_healthy)))
    _fail(health, 4)
    health.forget("d")
    _fail(health, 2)
    assert [("d", False)] == said

    _fail(health, 1)
    assert [("d", False)] * 2 == said
