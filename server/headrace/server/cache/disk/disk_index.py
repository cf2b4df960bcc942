"""Choose which blocks the cache's folder keeps and which it deletes. No I/O.

1. The sizes of all blocks together never exceed the budget.
2. Blocks of unserved datasets are deleted first.
3. Each served dataset owns an equal part. A dataset below its part takes room from the one that is
   farthest above its own; any dataset may use free room.
4. A dataset that fills its part replaces only blocks that it has not read for two epochs. An epoch
   reads every block once, in an order of its own. So a block that was read recently is needed later
   than one that was not, and replacing the older one would drop the block that is needed sooner.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

# A block is given up if the dataset was read for this many epochs without it.
_STALE_EPOCHS = 2


@dataclass(slots=True)
class _Entry:
    size: int
    read_at: int


@dataclass(slots=True)
class _Dataset:
    """The blocks of one dataset, the least recently read first."""

    block_count: int = 0
    servings: int = 0
    reads: int = 0
    size: int = 0
    entries: OrderedDict[int, _Entry] = field(default_factory=OrderedDict)


class DiskIndex:
    """The blocks in the folder, by dataset; not thread-safe.

    Args:
        budget_bytes: The most bytes of all blocks together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._datasets: dict[str, _Dataset] = {}
        self.used = 0

    def open(self, fingerprint: str, block_count: int) -> None:
        """Start to serve a dataset."""
        dataset = self._datasets.setdefault(fingerprint, _Dataset())
        dataset.block_count = block_count
        dataset.servings += 1

    def release(self, fingerprint: str) -> None:
        """Undo one `open`; blocks of unserved datasets stay while there is room."""
        self._datasets[fingerprint].servings -= 1

    def add(self, fingerprint: str, block: int, size: int) -> None:
        """Add a block that is in the folder, or for which `make_room` has made room."""
        dataset = self._datasets.setdefault(fingerprint, _Dataset())
        dataset.entries[block] = _Entry(size, dataset.reads)
        dataset.size += size
        self.used += size

    def read(self, fingerprint: str, block: int) -> bool:
        """Record that a block is needed; return whether it is in the folder."""
        dataset = self._datasets.setdefault(fingerprint, _Dataset())
        dataset.reads += 1
        entry = dataset.entries.get(block)
        if entry is None:
            return False
        entry.read_at = dataset.reads
        dataset.entries.move_to_end(block)
        return True

    def remove(self, fingerprint: str, block: int) -> None:
        """Remove a block, if it is in the folder."""
        dataset = self._datasets.get(fingerprint)
        entry = dataset.entries.pop(block, None) if dataset else None
        if dataset is None or entry is None:
            return
        dataset.size -= entry.size
        self.used -= entry.size

    def make_room(self, fingerprint: str, size: int) -> tuple[list[tuple[str, int]], bool]:
        """Choose the blocks to delete for a new block of a dataset.

        Returns:
            The blocks to delete, which are removed here, and whether there is room then. If there
            is not, the new block is not kept.
        """
        victims: list[tuple[str, int]] = []
        while self.used + size > self._budget:
            victim = self._victim(fingerprint, size) if size <= self._budget else None
            if victim is None:
                return victims, False
            self.remove(*victim)
            victims.append(victim)
        return victims, True

    def trim(self) -> list[tuple[str, int]]:
        """Choose the blocks to delete if those in the folder exceed the budget."""
        victims: list[tuple[str, int]] = []
        while self.used > self._budget:
            largest = max(self._datasets, key=lambda name: self._datasets[name].size)
            victim = (largest, next(iter(self._datasets[largest].entries)))
            self.remove(*victim)
            victims.append(victim)
        return victims

    def _victim(self, fingerprint: str, size: int) -> tuple[str, int] | None:
        stale = [name for name, dataset in self._datasets.items() if _is_idle(dataset)]
        if stale:
            return _oldest(self._datasets, stale[0])
        served = [name for name, dataset in self._datasets.items() if dataset.servings]
        part = self._budget // max(1, len(served))
        own = self._datasets[fingerprint]
        if own.size + size <= part:
            return _oldest(self._datasets, max(served, key=lambda name: self._datasets[name].size))
        oldest = next(iter(own.entries.values()), None)
        if oldest is None or own.reads - oldest.read_at <= _STALE_EPOCHS * own.block_count:
            return None
        return _oldest(self._datasets, fingerprint)


def _is_idle(dataset: _Dataset) -> bool:
    return not dataset.servings and bool(dataset.entries)


def _oldest(datasets: dict[str, _Dataset], fingerprint: str) -> tuple[str, int]:
    return fingerprint, next(iter(datasets[fingerprint].entries))
