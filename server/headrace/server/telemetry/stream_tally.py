"""Count what one stream sends and how long it waits, for metrics and for its last log line."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.stream_counts import Counts, StreamAbout


class StreamTally:
    """Counts for one stream, without a lock, since each thread counts different things.

    Args:
        metrics: The metrics to update.
        dataset: What is sent from, in words.
        rank: The rank of the stream; None for a call that is over after one batch.
        about: The properties of the stream.

    Attributes:
        counts: The counts.
    """

    def __init__(
        self,
        metrics: Metrics,
        dataset: str,
        rank: int | None,
        about: StreamAbout | None = None,
    ) -> None:
        self._metrics = metrics
        self._began = time.monotonic()
        self.counts = Counts(dataset, None if rank is None else str(rank))
        if about is not None:
            self.counts.about = about

    def begin(self) -> None:
        """Count the stream as open; `close` must follow."""
        self._metrics.stream_opened(self.counts.dataset)
        self._metrics.streams.open(self.counts)

    @property
    def seconds(self) -> float:
        """Return how long the stream has been open."""
        return time.monotonic() - self._began

    def made(self, dataset: str, *, seconds: float, batches: int) -> None:
        """Note how long it took to make batches, in total."""
        del dataset
        self.counts.note_made(seconds, batches)

    def sent(
        self,
        dataset: str,
        *,
        batches: int,
        samples: int,
        payload_bytes: int,
        place: tuple[int, int, int],
    ) -> None:
        """Count batches."""
        del dataset
        counts = self.counts
        counts.batches += batches
        counts.samples += samples
        counts.payload_bytes += payload_bytes
        counts.place = place

    def replaced(self, dataset: str, *, samples: int) -> None:
        """Count damaged samples that were replaced by others."""
        self._metrics.replaced(dataset, samples=samples)

    def starving(self, since: float) -> None:
        """Note that a batch has been waiting for its store since a time on the monotonic clock."""
        self.counts.starving_since = since

    def starved(self, dataset: str, *, seconds: float) -> None:
        """Note how long a batch waited for its store."""
        self.counts.starving_since = None
        self.counts.store_wait_s += seconds
        self._metrics.starved(dataset, seconds=seconds)

    def timed(
        self, messages: Generator[bytes, None, None], *, taken: Callable[[int], None]
    ) -> Iterator[bytes]:
        """Yield messages, and count the time until each has been read.

        Args:
            messages: The messages of the stream.
            taken: Is called with the size of each message after it has been read.
        """
        counts = self.counts
        try:
            for message in messages:
                counts.in_flight_bytes = len(message)
                began = counts.sending_since = time.monotonic()
                try:
                    yield message
                finally:
                    counts.sending_since = None
                    counts.client_wait_s += time.monotonic() - began
                    counts.in_flight_bytes = 0
                taken(len(message))
        finally:
            messages.close()

    def close(self, reason: str) -> dict[str, object]:
        """Remove the stream from the metrics; return its summary for the log."""
        counts = self.counts
        self._metrics.streams.close(counts)
        self._metrics.stream_ended(counts.dataset, reason)
        return {
            "batches": counts.batches,
            "samples": counts.samples,
            "payload_bytes": counts.payload_bytes,
            "seconds": round(self.seconds, 3),
            "store_wait_s": round(counts.store_wait_s, 3),
            "client_wait_s": round(counts.client_wait_s, 3),
        }
