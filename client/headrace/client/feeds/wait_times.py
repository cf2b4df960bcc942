"""Attribute a loop's waiting time to hops: store, server, network, client, copy, transform.

A reader is always in one phase, which is the hop that it waits for or works on. While a loop waits,
the seconds of the phases are what it waits for.

A reader does not guess. A wait for the start of a batch is put down to the server, except for the
part in which the server, by its own account, waited for its store. Waits for the rest of a batch,
for a connection, and between two tries are put down to the network.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Hop = Literal["store", "server", "network", "client", "copy", "transform", "rest"]
"""``rest`` means that the reader waits for the loop, or for nothing."""


@dataclass(frozen=True, slots=True)
class HopSeconds:
    """Seconds by hop.

    Attributes:
        store: The server waited for its object store.
        server: The server had no batch ready, for another reason.
        network: The connection was made, or bytes of a batch were on their way.
        client: This process assembled and verified batches.
        copy: Batches were copied to the device.
        transform: The function given as ``transform=`` was at work.
    """

    store: float = 0.0
    server: float = 0.0
    network: float = 0.0
    client: float = 0.0
    copy: float = 0.0
    transform: float = 0.0

    def __add__(self, other: HopSeconds) -> HopSeconds:
        return HopSeconds(
            self.store + other.store,
            self.server + other.server,
            self.network + other.network,
            self.client + other.client,
            self.copy + other.copy,
            self.transform + other.transform,
        )


class HopClock:
    """Adds up a reader's phases while a loop waits; thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Start idle, with nobody waiting.

        Args:
            now: Seconds of a clock that never goes back.
        """
        self._now = now
        self._lock = threading.Lock()
        self._waited: dict[Hop, float] = dict.fromkeys(
            ("store", "server", "network", "client", "copy", "transform", "rest"), 0.0
        )
        self._is_awaited = False
        self._hop: Hop = "rest"
        self._since = now()

    def enter(self, hop: Hop) -> None:
        """Note that the reader works on a hop, or waits for it, from now on."""
        with self._lock:
            if self._is_awaited:
                now = self._now()
                self._waited[self._hop] += now - self._since
                self._since = now
            self._hop = hop

    def blame_store(self, seconds: float) -> None:
        """Note how much of the wait for the server was a wait for its store.

        Args:
            seconds: At most what the loop has waited for this hop counts, whatever a server says.
        """
        with self._lock:
            if self._is_awaited:
                seconds = min(seconds, self._now() - self._since)
                self._waited["store"] += seconds
                self._since += seconds

    def begin_wait(self) -> float:
        """Note that a loop starts to wait, and return the time."""
        with self._lock:
            self._is_awaited, self._since = True, self._now()
            return self._since

    def end_wait(self) -> float:
        """Note that the loop stops waiting, and return the time."""
        with self._lock:
            now = self._now()
            self._waited[self._hop] += now - self._since
            self._is_awaited = False
            return now

    def waited(self) -> HopSeconds:
        """Return the seconds waited so far, by hop."""
        with self._lock:
            seconds = dict(self._waited)
            if self._is_awaited:
                seconds[self._hop] += self._now() - self._since
        return HopSeconds(
            seconds["store"],
            seconds["server"],
            seconds["network"],
            seconds["client"],
            seconds["copy"],
            seconds["transform"],
        )
