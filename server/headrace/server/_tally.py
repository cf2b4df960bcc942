"""What one stream has sent and how long it waited: for metrics, for its last line in the log."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

from headrace.server._metrics import Metrics, StreamWaits


class StreamTally:
    """Counts for one stream; its threads each count other things, so there is no lock.

    Args:
        metrics: Are told the same.
        dataset: What is sent from, in words.
        rank: Of the stream; None for a call that is over after one batch.

    Attributes:
        batches: Sent.
        samples: Sent.
        payload_bytes: Sent.
        store_wait_s: Waited for the store.
        client_wait_s: Waited for the client to take messages.
    """

    def __init__(self, metrics: Metrics, dataset: str, rank: int | None) -> None:
        self._metrics = metrics
        self._dataset = dataset
        self._rank = rank
        self._of_dataset = metrics.of_dataset(dataset)
        self._waits: StreamWaits | None = None
        self._began = time.monotonic()
        self.batches = self.samples = self.payload_bytes = 0
        self.store_wait_s = self.client_wait_s = 0.0

    def begin(self) -> None:
        """Count the stream as open; `close` must follow."""
        self._metrics.stream_opened()
        if self._rank is not None:
            self._waits = self._metrics.waits_of(self._dataset, str(self._rank))

    @property
    def seconds(self) -> float:
        """Return how long the stream has been open."""
        return time.monotonic() - self._began

    def made(self, dataset: str, *, seconds: float) -> None:
        """Note how long a batch took to make."""
        del dataset
        self._of_dataset.made(seconds)

    def sent(self, dataset: str, *, samples: int, payload_bytes: int) -> None:
        """Count a batch."""
        del dataset
        self.batches += 1
        self.samples += samples
        self.payload_bytes += payload_bytes
        self._of_dataset.sent(samples, payload_bytes)

    def starved(self, dataset: str, *, seconds: float) -> None:
        """Note how long a batch waited for its store."""
        del dataset
        self.store_wait_s += seconds
        if self._waits is not None:
            self._waits.store.inc(seconds)
        self._of_dataset.starved.observe(seconds)

    def timed(self, messages: Generator[bytes, None, None]) -> Iterator[bytes]:
        """Yield messages, and count the time until each has been taken."""
        try:
            for message in messages:
                self._metrics.sending(len(message))
                began = time.monotonic()
                try:
                    yield message
                finally:
                    seconds = time.monotonic() - began
                    self.client_wait_s += seconds
                    if self._waits is not None:
                        self._waits.client.inc(seconds)
                    self._metrics.sending(-len(message))
        finally:
            messages.close()

    def close(self, reason: str) -> dict[str, object]:
        """Forget the stream in the metrics; return what it was, for the log."""
        self._metrics.stream_ended(self._dataset, reason)
        if self._rank is not None:
            self._metrics.forget(self._dataset, str(self._rank))
        return {
            "batches": self.batches,
            "samples": self.samples,
            "payload_bytes": self.payload_bytes,
            "seconds": round(self.seconds, 3),
            "store_wait_s": round(self.store_wait_s, 3),
            "client_wait_s": round(self.client_wait_s, 3),
        }
