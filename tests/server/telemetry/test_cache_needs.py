"""Tests of the warning that the cache is smaller than what is shuffled together."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import pytest

from headrace.server.telemetry.cache_needs import CacheNeed, CacheNeeds
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.running import RICH_SAMPLES
from support.served import read

_LOGGER = "headrace.server.telemetry.cache_needs"
_MIB = 1 << 20


def _warnings(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(each)["headrace_fields"] for each in caplog.records if each.name == _LOGGER]


def test_lanes_of_jobs_add_up_while_they_are_read(caplog: pytest.LogCaptureFixture) -> None:
    """Ranks of a job count once, its lanes each; the first stream that is too much is told."""
    seconds = 0.0
    needs = CacheNeeds(5 * _MIB, now=lambda: seconds)
    with ExitStack() as streams:

        def open_stream(job: str, lanes: range) -> None:
            need = CacheNeed(job, lanes, 2 * _MIB)
            streams.enter_context(needs.held(need, dataset=job))

        for _ in range(3):
            open_stream("one", range(2))
        assert 4 * _MIB == needs.needed_bytes
        assert not _warnings(caplog)

        open_stream("other", range(1))
        open_stream("third", range(1))
        assert [
            {"dataset": "other", "lane_mib": 2, "lanes": 1, "needed_mib": 6, "cache_mib": 5}
        ] == _warnings(caplog)

        seconds = 601.0
        open_stream("third", range(1))
        assert ["other", "third"] == [each["dataset"] for each in _warnings(caplog)]
    assert 0 == needs.needed_bytes


def test_a_part_of_the_cache_has_spare_bytes_of_its_own() -> None:
    """A worker, which does not know what others need, spends no more than its part."""
    needs = CacheNeeds(16 * _MIB)
    with needs.held(CacheNeed("one", range(1), 4 * _MIB), dataset="one"):
        assert 10 * _MIB == needs.spare_bytes(16 * _MIB)
        assert 2 * _MIB == needs.spare_bytes(8 * _MIB)
        assert 0 == needs.spare_bytes(4 * _MIB)


@pytest.mark.parametrize(
    ("order", "cache_bytes", "warned"),
    [
        pytest.param(pb.OrderSpec(), 1 << 30, [], id="all fits"),
        pytest.param(pb.OrderSpec(shuffle=False), 1 << 16, [], id="nothing is shuffled"),
        pytest.param(pb.OrderSpec(shuffle_bytes=1 << 16), 1 << 16, [], id="it just fits"),
        pytest.param(pb.OrderSpec(shuffle_bytes=1 << 17), 1 << 16, [1], id="one lane"),
        pytest.param(
            pb.OrderSpec(shuffle_bytes=1 << 15, lanes=4, unit=64), 1 << 16, [4], id="lanes"
        ),
    ],
)
def test_a_server_says_when_its_cache_is_too_small(
    order: pb.OrderSpec,
    cache_bytes: int,
    warned: list[int],
    start: StartServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With less memory than the shuffle of a stream asks for, and only then."""
    served = start(cache_bytes=cache_bytes)
    request = pb.ReadBatchesRequest(
        dataset="rich",
        order=order,
        global_batch_size=64,
        world_size=1,
        epoch_start=pb.EpochStart(position=RICH_SAMPLES - 64),
        epoch_count=1,
        columns=["number"],
    )

    with caplog.at_level(logging.WARNING):
        read(served.channel, request)

    assert warned == [each["lanes"] for each in _warnings(caplog)]
