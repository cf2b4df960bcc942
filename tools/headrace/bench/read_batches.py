"""Read batches of one rank and drop them, and say how long what took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.client import (
    Access,
    BatchEvent,
    BatchReader,
    BufferPool,
    CacheShortage,
    Deadlines,
    Feeds,
    Landing,
    Place,
    ReadOptions,
    Transport,
    TransportState,
)

_BUFFER_BYTES = 64 << 20
_ALL = 1 << 40

DEADLINES = Deadlines(connect_s=30, give_up_s=60)
"""How long a measurement waits for a server."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read.

    Attributes:
        batches: Number of batches.
        samples: Number of samples.
        payload_bytes: Bytes of payload.
        seconds: From opening to the last batch.
        first_s: From opening to the first batch.
        waited_s: Seconds in each hop: store, decode, server, network, client, copy.
        cache_shortage: How the server's cache is too small for the job; None if it is not.
    """

    batches: int
    samples: int
    payload_bytes: int
    seconds: float
    first_s: float
    waited_s: dict[str, float]
    cache_shortage: CacheShortage | None


def read_batches(
    targets: Sequence[str],
    options: ReadOptions,
    *,
    seconds: float,
    max_batches: int = _ALL,
    access: Access | None = None,
) -> Reading:
    """Read over gRPC for some time, or until there are enough batches.

    Raises:
        HeadraceError: No server answered, or the server refused the call.
    """
    allocate, transport = BufferPool(idle_bytes=_BUFFER_BYTES).take, TransportState()
    landing = Landing(allocate, None, transport)
    reader = BatchReader(
        targets,
        options,
        place=Place(),
        deadlines=DEADLINES,
        allocate=allocate,
        open_feed=Feeds(Transport("grpc"), landing, silence_s=DEADLINES.silence_s),
        access=access,
    )
    start = time.perf_counter()
    reader.clock.begin_wait()
    first_s, samples, payload_bytes, batches = 0.0, 0, 0, 0
    try:
        for event in reader.events():
            if not isinstance(event, BatchEvent):
                continue
            first_s = first_s or time.perf_counter() - start
            samples += event.header.sample_count
            payload_bytes += event.header.payload_bytes
            batches += 1
            if batches >= max_batches or time.perf_counter() - start >= seconds:
                break
    finally:
        reader.close()
    spent = reader.clock.waited()
    return Reading(
        batches,
        samples,
        payload_bytes,
        time.perf_counter() - start,
        first_s,
        spent._asdict(),
        transport.cache_shortage,
    )
