"""Workers of one pool agree on where to start, and listen to no other pool."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.client import Place
from headrace.client.loader.progress import LoopStart
from headrace.client.loader.worker_plan import SharedPlace, WorkerPart


def test_another_pool_of_the_same_seed_is_not_listened_to() -> None:
    """As where torch is seeded before each epoch: workers would read the last one twice."""
    shared = SharedPlace()
    first, then = (LoopStart(Place(epoch, 0), 0, 0) for epoch in (0, 1))
    shared.agree(WorkerPart(0, 2, seed=5, first=1), 0, first)
    with ThreadPoolExecutor() as threads:
        other = threads.submit(shared.agree, WorkerPart(1, 2, seed=5, first=3), 0, first)
        with pytest.raises(TimeoutError):
            other.result(timeout=0.05)
        shared.agree(WorkerPart(0, 2, seed=5, first=3), 0, then)

        assert then == other.result(timeout=30)


@pytest.mark.parametrize("later", [0, 1])
def test_a_pool_agrees_though_another_process_was_started_in_between(later: int) -> None:
    """Its numbers then lie apart by one more."""
    shared = SharedPlace()
    start = LoopStart(Place(3, 12), 0, 0)
    shared.agree(WorkerPart(0, 2, seed=5, first=7), 4, start)

    own = LoopStart(Place(0, 0), 0, 0)
    assert start == shared.agree(WorkerPart(1, 2, seed=5, first=7 + later), 4, own)
