"""The figures of a load test."""

from __future__ import annotations

import numpy as np

from headrace.loadtest import RECORD, SwarmResult, SwarmSpec
from headrace.loadtest.report.summary import Summary, summarise
from headrace.loadtest.swarm.rank import RankResult, RankSeat
from headrace.loadtest.swarm.spec import Generation
from headrace.order import OrderSpec


def _summary(*batches: tuple[float, int]) -> Summary:
    """Return the figures of one rank, given the second and the samples of each batch."""
    records = np.zeros(len(batches), RECORD)
    records["at_s"] = [at for at, _ in batches]
    records["sample_count"] = [count for _, count in batches]
    spec = SwarmSpec(
        targets=("localhost:1",),
        dataset="d",
        sample_count=100,
        order=OrderSpec(),
        global_batch_size=10,
        ranks=1,
        steps=len(batches),
    )
    return summarise(
        SwarmResult(
            spec=spec,
            generations=(Generation(1, 0, len(batches)),),
            results=(RankResult(RankSeat(0, 0, 0), records),),
            began_at_s=0.0,
            elapsed_s=20.0,
        )
    )


def test_one_batch_has_the_rate_of_the_run() -> None:
    """Between a single batch and itself no time passes, which is no infinite rate."""
    assert 0.5 == _summary((3.0, 10)).samples_per_s
    assert 10.0 == _summary((3.0, 10), (5.0, 10)).samples_per_s


def test_an_empty_part_of_the_last_batch_is_a_figure_too() -> None:
    """Ranks that got nothing in the time that is compared were treated alike."""
    assert 1.0 == _summary((3.0, 10), (5.0, 0)).fairness
