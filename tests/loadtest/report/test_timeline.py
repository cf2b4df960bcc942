"""What the picture of a load test draws: waits where they were, and what was done when."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from headrace.loadtest import RECORD, Cut, Mark, Pause, SwarmResult, SwarmSpec, draw, run_faults
from headrace.loadtest.report.timeline import marks_of, waiting_share
from headrace.loadtest.swarm.rank import RankResult, RankSeat
from headrace.loadtest.swarm.spec import Generation
from headrace.order import OrderSpec

WAIT_S = 60.0


def _rank(
    *batches: tuple[float, float], generation: int = 0, rank: int = 0, job: int = 0
) -> RankResult:
    """A rank whose batches came at these seconds, after waits of these lengths."""
    records = np.zeros(len(batches), RECORD)
    records["at_s"] = [at for at, _ in batches]
    records["wait_s"] = [wait for _, wait in batches]
    records["payload_bytes"] = 1 << 20
    return RankResult(RankSeat(job, generation, rank), records)


def _swarm(
    results: Sequence[RankResult], generations: Sequence[Generation], **spec: object
) -> SwarmResult:
    options = {"ranks": 2, "steps": generations[-1].end_step, **spec}
    return SwarmResult(
        spec=SwarmSpec(
            targets=("localhost:1",),
            dataset="d",
            sample_count=100,
            order=OrderSpec(),
            global_batch_size=10,
            **options,  # type: ignore[arg-type] # tests name what they mean
        ),
        generations=tuple(generations),
        results=tuple(results),
        began_at_s=0.0,
        elapsed_s=20.0,
    )


def test_waits_lie_where_they_were() -> None:
    """The first batch's too: not all of them in the moment in which the batch came."""
    results = [_rank((4.0, 4.0), (6.0, 1.0), (8.0, 0.0)), _rank((2.0, 0.0), (4.0, 0.0))]

    share = waiting_share(results, np.array([0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0]))

    assert [1.0, 1.0, 0.5, 0.0, 1.0, 0.0] == share[:-1].tolist()
    assert np.isnan(share[-1])


def test_all_that_was_waited_is_drawn() -> None:
    """Whatever the edges: the share times the time that ranks were there is the sum of waits."""
    results = [_rank((3.3, 2.9), (5.0, 1.1), (9.0, 3.3)), _rank((1.0, 0.2), (9.0, 4.0))]
    edges = np.linspace(0.0, 9.0, 38)

    share = np.nan_to_num(waiting_share(results, edges))
    starts, ends = np.array([0.4, 0.8]), np.array([9.0, 9.0])
    there = [
        np.clip(np.minimum(ends, right) - np.maximum(starts, left), 0, None).sum()
        for left, right in itertools.pairwise(edges)
    ]

    assert float((share * there).sum()) == pytest.approx(2.9 + 1.1 + 3.3 + 0.2 + 4.0)


def test_rescales_crashes_and_pauses_are_marked() -> None:
    """Where the next ranks begin to wait, and behind the batch after which a rank rests."""
    generations = [Generation(2, 0, 4), Generation(2, 2, 6), Generation(3, 6, 8)]
    batches = [
        [(1.0, 0.5), (2.0, 0.1), (3.0, 0.1), (4.0, 0.1)],
        [(6.0, 1.0), (7.0, 0.1), (8.0, 0.1), (9.0, 0.1)],
        [(12.0, 0.25), (13.0, 0.1)],
    ]
    results = [
        _rank(*each, generation=number, rank=rank)
        for number, each in enumerate(batches)
        for rank in range(2)
    ]
    swarm = _swarm(results, generations, pauses=(Pause(rank=1, seconds=1, share=0.875),))

    found = marks_of(swarm)

    assert [Mark(5.0, "crash"), Mark(11.75, "3 ranks"), Mark(13.0, "pause")] == found


def test_faults_are_in_the_picture(tmp_path: Path) -> None:
    """By name, as text that a reader of the file finds."""
    swarm = _swarm([_rank((1.0, 1.0), (2.0, 0.5), (9.0, 0.0))], [Generation(1, 0, 3)], ranks=1)
    path = tmp_path / "run.svg"

    draw(swarm, path, faults=[Mark(5.0, "kill"), Mark(6.0, "blackhole 3 s")])

    shown = {text.strip() for text in re.findall(r">([^<>]*)</text>", path.read_text())}
    assert {"kill", "blackhole 3 s"} <= shown
    assert "Time spent waiting, including first batches" in shown


def test_faults_are_noted_when_they_happen() -> None:
    """One note a fault, and none for a victim that is dead and not started again."""
    kills: list[int] = []
    twice = threading.Event()
    noted: list[str] = []

    class _Victim:
        """Dies once."""

        count = 0

        def __call__(self) -> None:
            self.count = 1
            kills.append(1)
            if len(kills) == 2:
                twice.set()

    batches = iter(range(10**9))
    with run_faults(
        [_Victim()],  # type: ignore[list-item] # no process is killed here
        proxies=[],
        cuts=[],
        every_s=0.0,
        batches=lambda: next(batches),
        note=noted.append,
    ):
        assert twice.wait(WAIT_S)

    assert ["kill"] == noted


def test_a_fault_that_cannot_be_caused_is_reported() -> None:
    """The run goes on, other faults too, and the block's value says what failed."""
    killed, cut = threading.Event(), threading.Event()

    class _Protected:
        """Cannot be killed."""

        count = 0

        def __call__(self) -> None:
            killed.set()
            raise PermissionError(1, "Operation not permitted")

    batches = iter(range(10**9))
    with run_faults(
        [_Protected()],  # type: ignore[list-item] # no process is killed here
        proxies=[],
        cuts=[Cut("reset")],
        every_s=0.0,
        batches=lambda: next(batches),
        note=lambda _: cut.set(),
    ) as failed:
        assert killed.wait(WAIT_S)
        assert cut.wait(WAIT_S)

    assert ["[Errno 1] Operation not permitted"] == failed
