"""Tests of a wall clock that jumps: nothing that streams depend on may ask it."""

from __future__ import annotations

import time

import grpc
import pytest

from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.served import failure_of, read_until_failure, stub_of, transcript

_DAY_S = 86_400.0


class _Clock:
    """The wall clock, and by how much it is wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real, real_ns = time.time, time.time_ns
        self.offset_s = 0.0
        monkeypatch.setattr(time, "time", lambda: real() + self.offset_s)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + round(self.offset_s * 1e9))


def test_jumps_of_the_clock_are_not_seen(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day and a year forward and back: the same batches, no rotation, and a drain in time."""
    clock = _Clock(monkeypatch)
    running = start(max_stream_s=600, heartbeat_s=60, drain_s=30)
    request = pb.ReadBatchesRequest(
        dataset="rich",
        global_batch_size=100,
        world_size=1,
        epoch_start=pb.EpochStart(),
        with_ids=True,
        columns=["number"],
    )
    # Without a deadline: gRPC's client would make one of the clock that is wrong.
    messages = iter(stub_of(running.channel).ReadBatches(request))
    seen = []
    for days in (0, 1, -1, 400, -400, 0):
        clock.offset_s = days * _DAY_S
        seen += [next(messages) for _ in range(12)]
    clock.offset_s = _DAY_S
    began = time.monotonic()
    assert running.server.drain()

    rest, failure = read_until_failure(messages)
    whole = transcript(iter([*seen, *rest]))
    assert [batch.header.step for batch in whole.batches] == list(range(len(whole.batches)))
    assert all(batch.ids == batch.values["number"] for batch in whole.batches)
    assert (grpc.StatusCode.UNAVAILABLE, "DRAINING") == (
        failure_of(failure)[0],
        failure_of(failure)[1].reason,
    )
    assert time.monotonic() - began < 120
