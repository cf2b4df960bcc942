"""Tests of the warning that the cache is smaller than what is shuffled together."""

from __future__ import annotations

import logging

import pytest

from headrace.server.cache.needs import Shortage
from headrace.server.telemetry.shortages import ShortageWarnings
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.running import RICH_SAMPLES
from support.served import read

_LOGGER = "headrace.server.telemetry.shortages"
_MIB = 1 << 20


def _warnings(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(each)["headrace_fields"] for each in caplog.records if each.name == _LOGGER]


def test_each_dataset_is_warned_of_once_in_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """The warning says what the job needs and has, and what all need."""
    seconds = 0.0
    warnings = ShortageWarnings(now=lambda: seconds)
    shortage = Shortage(6 * _MIB, 3 * _MIB, 12 * _MIB, 5 * _MIB, 2)

    for _ in range(3):
        warnings.warn(shortage, dataset="one")
        warnings.warn(shortage, dataset="other")
    seconds = 601.0
    warnings.warn(shortage, dataset="one")

    said = {"job_mib": 6, "part_mib": 3, "jobs": 2, "needed_mib": 12, "cache_mib": 5}
    assert [{"dataset": name, **said} for name in ("one", "other", "one")] == _warnings(caplog)


@pytest.mark.parametrize(
    ("order", "cache_bytes", "warned"),
    [
        pytest.param(pb.OrderSpec(), 1 << 30, 0, id="all fits"),
        pytest.param(pb.OrderSpec(shuffle=False), 1 << 16, 0, id="nothing is shuffled"),
        pytest.param(pb.OrderSpec(shuffle_bytes=1 << 16), 1 << 18, 0, id="it fits"),
        pytest.param(pb.OrderSpec(shuffle_bytes=1 << 16), 1 << 15, 1, id="half of it fits"),
        pytest.param(pb.OrderSpec(shuffle_bytes=1 << 15, lanes=4, unit=64), 1 << 16, 1, id="lanes"),
    ],
)
def test_a_server_says_when_its_cache_is_too_small(
    order: pb.OrderSpec,
    cache_bytes: int,
    warned: int,
    start: StartServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With less memory than the shuffle of a stream takes there, and only then."""
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

    assert warned == len(_warnings(caplog))
