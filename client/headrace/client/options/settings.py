"""The settings of a client as frozen values, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from math import nextafter

from headrace.arguments import number

DEFAULT_PREFETCH_BYTES = 64 << 20
"""Arbitrary: tens of batches of 1 to 3 MiB, little compared with a trainer's memory."""

GROUP_BYTES = (2 << 20) + (64 << 10)
"""Most bytes of small batches that come in one message: what a server makes at once, with their
headers."""

DEFAULT_MAX_BATCH_BYTES = 1 << 30
"""The default of servers' ``max_batch_bytes``."""

_LONGEST_S = 1e9
"""31 years; operating systems cannot wait much longer at a time."""
_BELOW_ONE = nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a client waits before it acts.

    Attributes:
        connect_s: Seconds until a server must have answered for the first time, > 0. The default
            leaves room for a server that is just being started.
        silence_s: Seconds without a message before a stream counts as dead, > 0. Servers send a
            heartbeat every 5 s, so the default is six of them.
        give_up_s: Seconds without a new batch, over all reconnects, before the error reaches the
            training loop, > 0. The default lets a pod be rescheduled.
        fallback_s: Seconds without any server before a `Fallback` starts a private one,
            > 0; at most half of ``connect_s`` and ``give_up_s``. From then on, half of it is the
            mean time between two looks for a server. The default lets a server restart.
    """

    connect_s: float = 30.0
    silence_s: float = 30.0
    give_up_s: float = 600.0
    fallback_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse waits that are not positive."""
        for field in ("connect_s", "silence_s", "give_up_s", "fallback_s"):
            value = number(f"deadlines.{field}", getattr(self, field), above=0, most=_LONGEST_S)
            object.__setattr__(self, field, value)


@dataclass(frozen=True, slots=True)
class Hedge:
    """When to ask a second server for a batch that is late; whichever comes first is taken.

    Attributes:
        percentile: A batch is late when it takes longer than this part of the last 256 did, in
            (0, 1).
        least_s: No batch is late before this many seconds, > 0. Arbitrary: many times what a batch
            takes that the server has ready.
        budget: Most extra requests as a share of the batches, in (0, 1]; at most two are saved up.

    Source: "The Tail at Scale", Dean and Barroso, 2013: hedged requests after the 95th percentile
    cost some 5 % more load.
    """

    percentile: float = 0.95
    least_s: float = 0.1
    budget: float = 0.05

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        for field, most in (("percentile", _BELOW_ONE), ("least_s", _LONGEST_S), ("budget", 1.0)):
            value = number(f"hedge.{field}", getattr(self, field), above=0, most=most)
            object.__setattr__(self, field, value)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with full jitter.

    Attributes:
        first_s: Upper bound of the first wait in seconds.
        most_s: Upper bound of any wait in seconds.

    Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015: full jitter spreads many
    clients best.
    """

    first_s: float = 0.1
    most_s: float = 5.0

    def wait_s(self, attempt: int, jitter: float) -> float:
        """Compute the wait before retry number ``attempt`` (0, 1, …).

        Args:
            attempt: Number of earlier retries.
            jitter: A uniform random number in [0, 1).
        """
        return jitter * min(self.most_s, self.first_s * 2.0 ** min(attempt, 30))
