"""Which rank of a job waits the most, through the key-value store of torch.distributed.

The ranks log when they get to it, not together, so nothing here waits for another rank: each puts
down its latest share, and the first one reads what is there.
"""

from __future__ import annotations

import logging
from typing import Any, Self

import torch.distributed as dist

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

    def worst(self, share: float) -> tuple[float, int] | None:
        """Put down this rank's share, and return the largest one with its rank.

        Args:
            share: In [0, 1].

        Returns:
            On the first rank, once each rank has put one down; elsewhere None.
        """
        self._store.set(self._keys[self._rank], repr(share))
        if self._rank or not self._store.check(self._keys):
            return None
        shares = [float(self._store.get(key)) for key in self._keys]
        worst = max(range(len(shares)), key=shares.__getitem__)
        return shares[worst], worst


class Worst:
    """Finds the job when it is first asked, and gives up, with a warning, where a store fails."""

    def __init__(self, name: str) -> None:
        """Compare below one name."""
        self._name = name
        self._job: WorstRank | None = None
        self._has_failed = False

    def numbers(self, share: float) -> dict[str, float]:
        """Return the worst share and its rank, as numbers by name; empty if they are not known."""
        if self._has_failed:
            return {}
        try:
            self._job = self._job or WorstRank.of_job(self._name)
            found = None if self._job is None else self._job.worst(share)
        except Exception as error:  # noqa: BLE001 - whatever a store does, training goes on
            self._has_failed = True
            _log.warning("which rank waits the most is not logged: %s", error)
            return {}
        return (
            {} if found is None else {"waited_share_worst_rank": found[0], "worst_rank": found[1]}
        )
