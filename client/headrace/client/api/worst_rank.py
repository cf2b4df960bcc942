"""Which rank of a job waits the most, through the key-value store of torch.distributed.

The ranks log when they get to it, not together, so nothing here waits for another rank: each puts
down its latest share, and the first one reads what is there.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Self

import torch.distributed as dist

from headrace.client.feeds.blame import HOPS, Culprit

_log = logging.getLogger(__name__)


class WorstRank:
    """The latest shares of all ranks."""

    def __init__(self, store: Any, rank: int, world_size: int, name: str) -> None:
        """Write and read below one name.

        Args:
            store: A store of torch.distributed's.
            rank: Of this process.
            world_size: Number of processes.
            name: What is compared.
        """
        self._store, self._rank = store, rank
        self._keys = [f"headrace/waited_share/{name}/{each}" for each in range(world_size)]

    @classmethod
    def of_job(cls, name: str) -> Self | None:
        """Return that of this job; None if torch.distributed knows of no other rank."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return None
        # A connection of its own: others may wait on theirs.
        shared: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - nothing public has it
        return cls(shared.clone(), dist.get_rank(), dist.get_world_size(), name)

    def worst(self, share: float, culprit: Culprit | None) -> tuple[float, int, int, int] | None:
        """Put down this rank's share, and return the largest one with its rank, hop and step.

        Args:
            share: In [0, 1].
            culprit: What this rank waited for; None if it is not known.

        Returns:
            On the first rank, once each rank has put one down; elsewhere None. The hop is its index
            in `HOPS`, and -1 as the step is that of the trainer that was never waited for long.
        """
        hop = HOPS.index("trainer" if culprit is None else culprit.hop)
        step = -1 if culprit is None or culprit.step is None else culprit.step
        self._store.set(self._keys[self._rank], json.dumps([share, hop, step]))
        if self._rank or not self._store.check(self._keys):
            return None
        found = [json.loads(self._store.get(key)) for key in self._keys]
        worst = max(range(len(found)), key=lambda rank: found[rank][0])
        share, hop, step = found[worst]
        return share, worst, hop, step


class Worst:
    """Finds the job when it is first asked, and gives up, with a warning, where a store fails."""

    def __init__(self, name: str) -> None:
        """Compare below one name."""
        self._name = name
        self._job: WorstRank | None = None
        self._has_failed = False

    def numbers(self, share: float, culprit: Culprit | None) -> dict[str, float]:
        """Return the worst share with its rank, hop and step; nothing if they are not known."""
        if self._has_failed:
            return {}
        try:
            self._job = self._job or WorstRank.of_job(self._name)
            found = None if self._job is None else self._job.worst(share, culprit)
        except Exception as error:  # noqa: BLE001 - whatever a store does, training goes on
            self._has_failed = True
            _log.warning("which rank waits the most is not logged: %s", error)
            return {}
        names = ("waited_share_worst_rank", "worst_rank", "worst_rank_hop", "worst_rank_step")
        return {} if found is None else dict(zip(names, found, strict=True))
