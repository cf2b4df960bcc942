"""Name who keeps a training waiting: a rank, a hop and a step.

1. A loop that waits for less than `TRAINER` of its time is kept by nobody: the trainer itself is
   what takes the time.
2. Otherwise the hop is the one that was waited for the longest.
3. The step is that of the batch that was waited for the longest.
4. The rank is the one that waits for the largest share of its time.

Statistics, logs, `headrace doctor` and a server's page all use this definition. A server knows its
own hops only: what it calls the trainer may be the network to it, or the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.client.feeds.wait_times import Recent

HOPS: Final = ("store", "decode", "server", "network", "client", "copy", "trainer")
TRAINER: Final = 0.05
"""The share of its time up to which a loop does not wait."""
_PARTS: Final = {"transform": "client"}


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who kept a loop waiting in the last ten seconds.

    Attributes:
        hop: One of `HOPS`.
        share: The share of the time that the loop waited for it; for the trainer, that it worked.
        rank: The rank that waited.
        step: The step of the batch that it waited for the longest; None if it never waited long.
        step_s: How long that was.
    """

    hop: str
    share: float
    rank: int
    step: int | None = None
    step_s: float = 0.0

    def __str__(self) -> str:
        if self.hop == "trainer":
            return f"rank {self.rank} works {self.share:.0%} of the time"
        longest = "" if self.step is None else f", {self.step_s:.2f} s for step {self.step}"
        return f"rank {self.rank} waits {self.share:.0%} of the time for the {self.hop}{longest}"


def culprit_of(recent: Recent, *, rank: int = 0) -> Culprit:
    """Return who kept a loop waiting."""
    hop, share = blamed(recent.waited._asdict(), recent.seconds)
    return Culprit(hop, share, rank, recent.step, recent.step_s)


def blamed(waited_s: Mapping[str, float], seconds: float) -> tuple[str, float]:
    """Return the hop that is to blame, and the share of the time that it took.

    Args:
        waited_s: Seconds that a loop, or a stream, waited for each hop.
        seconds: In how many.
    """
    if seconds <= 0:
        return "trainer", 1.0
    waited = sum(waited_s.values())
    if waited < TRAINER * seconds:
        return "trainer", 1 - waited / seconds
    sums: dict[str, float] = {}
    for name, each in waited_s.items():
        hop = _PARTS.get(name, name)
        sums[hop] = sums.get(hop, 0.0) + each
    hop = max(sums, key=sums.__getitem__)
    return hop, min(1.0, sums[hop] / seconds)
