"""How batches arrive, and where they go."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.client.feeds.shortage import CacheShortage
from headrace.client.options.settings import DEFAULT_MAX_BATCH_BYTES
from headrace.client.wire.assembler import Allocate, Keep
from headrace.client.wire.message_memory import memory_of
from headrace.v1 import shard_service_pb2 as pb

_log = logging.getLogger(__name__)

Adopt = Callable[[NDArray[np.uint8]], None]
"""Takes memory that a server writes payloads to, ``(shared_bytes,) uint8``."""


@dataclass(slots=True)
class TransportState:
    """How batches arrive at the moment, and why; written by the reading thread.

    Attributes:
        name: The name of the transport; empty before the first stream.
        reason: Why it is gRPC, or not quite what was requested; otherwise empty.
        shared_bytes: Size of the memory that a server writes batches to; 0 without such memory.
        batch_count: Batches that came in another way than gRPC's messages, over all streams.
        cache_shortage: How the server's cache was too small when the stream began; None if not.
    """

    name: str = ""
    reason: str = ""
    shared_bytes: int = 0
    batch_count: int = 0
    cache_shortage: CacheShortage | None = None

    def begin(self, start: pb.StreamStart) -> None:
        """Take the first message of a stream, and log a shortage that is new."""
        before, self.cache_shortage = self.cache_shortage, None
        if start.HasField("cache_shortage"):
            told = start.cache_shortage
            self.cache_shortage = CacheShortage(told.job_bytes, told.part_bytes)
            if self.cache_shortage != before:
                _log.warning("%s", self.cache_shortage)

    def is_shared(self) -> bool:
        """Return whether the server writes batches ahead into memory that this process sees."""
        return self.shared_bytes > 0

    def ready_bytes(self, wanted: int) -> int:
        """Return how many bytes may wait: at most half of what is shared with a server."""
        return min(wanted, self.shared_bytes // 2) if self.shared_bytes else wanted


@dataclass(frozen=True, slots=True)
class Landing:
    """Where the payloads of a reader go, and where its feeds report.

    Attributes:
        allocate: Returns memory for payloads that come in messages.
        adopt: Takes memory that a server writes payloads to.
        transport: Records how batches arrive.
        keep: Makes a message memory of its batch; None where payloads must go to ``allocate``.
        takes_runs: Whether batches in shared memory may come together (`BatchEvent.ahead`).
        max_batch_bytes: Most payload bytes of a batch, whatever a server says.
    """

    allocate: Allocate
    adopt: Adopt | None
    transport: TransportState
    keep: Keep | None = memory_of
    takes_runs: bool = False
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
