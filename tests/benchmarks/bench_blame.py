"""Measure what naming the culprit costs: calls times what each takes.

``PYTHONPATH=tests python tests/benchmarks/bench_blame.py`` prints the share of a processor that a
server of 64 ranks with a step of 200 ms spends on it, and each of their clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.client.feeds.wait_times import HopClock
from headrace.client.wire.frames import read_frame, read_heartbeat
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.stream_counts import StreamTally
from headrace.v1 import shard_service_pb2 as pb

_RANKS, _STEP_S = 64, 0.2
_LOOKING_S = 5.0


def _cost_s(call: Callable[[], object], count: int = 2000) -> float:
    """Return the processor time of a call: the least of some measurements."""
    costs = []
    for _ in range(5):
        began = time.thread_time()
        for _ in range(count):
            call()
        costs.append((time.thread_time() - began) / count)
    return min(costs)


def main() -> None:
    """Measure both, and print shares of a processor."""
    metrics = Metrics()
    tally = StreamTally(metrics.streams, "red", 0)
    tally.begin()
    counts = tally.counts
    counts.behind_since = time.monotonic()

    def timed() -> None:
        counts.behind_since = None
        counts.behind_s += 0.0
        counts.behind_since = time.monotonic()

    stalls, began, spent = metrics.streams.stalls, time.monotonic(), time.process_time()
    stalls.start()
    time.sleep(_LOOKING_S)
    looking = (time.process_time() - spent) / (time.monotonic() - began)
    stalls.close()
    account = pb.Heartbeat(store_ms=3, decode_ms=4, server_ms=5)
    message = pb.ReadBatchesResponse(heartbeat=account).SerializeToString()
    clock = HopClock()

    def heard() -> None:
        read_heartbeat(read_frame(message))
        clock.account(store=0.0, decode=0.0, server=0.0)

    batch_s = _cost_s(timed) + _cost_s(tally.owed)
    server = looking + batch_s * _RANKS / _STEP_S
    waited_s = _cost_s(lambda: clock.note_wait(0.0, lambda: 1)) + _cost_s(clock.succeed)
    # An account for 50 ms of waiting at most.
    client = waited_s / _STEP_S + _cost_s(heard) * 20

    print(f"{'share of a processor':<24}{'%':>8}   (0.1 asked)")
    print(f"{'server of 64 ranks':<24}{100 * server:>8.3f}   stalls: {100 * looking:.3f}")
    print(f"{'client':<24}{100 * client:>8.3f}")


if __name__ == "__main__":
    main()
