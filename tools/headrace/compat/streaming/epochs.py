"""Which epoch an iteration reads, agreed among the workers of a DataLoader.

Contract:

1. Each iteration takes the next place, and makes the start of the following epoch the next one,
   whether or not it is read to its end.
2. With workers, worker 0 takes it, and the others wait for what it took, under the iteration's
   key: the pool's seed and how many iterations the pool had before. Two pools may have one seed,
   if the user seeds torch before each; so what a process wrote that is not of this pool, by the
   numbers that multiprocessing gives processes, is not read.
3. Only the main process sets the next place by hand.
"""

from __future__ import annotations

import multiprocessing
import time

import torch
from torch.utils.data import get_worker_info

_NEXT, _TAKEN, _FIRST = 0, 2, 4
_STARTS, _WIDTH = 8, 5
_KEYS = 1 << 62
_WAIT_S = 60.0
"""Worker 0 starts before all others; spawned, it imports torch first. Arbitrary beyond that."""


class Epochs:
    """The next place of one dataset, in memory that its worker processes share."""

    def __init__(self) -> None:
        """Start with epoch 0; nothing is taken."""
        self._words = torch.zeros(_FIRST + _STARTS * _WIDTH, dtype=torch.int64)
        self._words.share_memory_()  # type: ignore[no-untyped-call] # torch leaves it so
        self._words[_TAKEN] = -1
        self._iterations = 0

    @property
    def next(self) -> tuple[int, int]:
        """The epoch and the position where the next iteration starts."""
        epoch, position = self._words[_NEXT : _NEXT + 2].tolist()
        return epoch, position

    @property
    def taken(self) -> tuple[int, int] | None:
        """Where the last iteration started; None before the first, and after a move."""
        epoch, position = self._words[_TAKEN : _TAKEN + 2].tolist()
        return None if epoch < 0 else (epoch, position)

    def move(self, epoch: int, position: int) -> None:
        """Set the next place; nothing is taken then."""
        self._words[_NEXT : _NEXT + 2] = torch.tensor([epoch, position])
        self._words[_TAKEN] = -1

    def take(self) -> tuple[int, int]:
        """Return where this iteration starts.

        Raises:
            RuntimeError: Worker 0 said nothing for a minute.
        """
        worker = get_worker_info()
        if worker is None:
            return self._take()
        number, self._iterations = self._iterations, self._iterations + 1
        pool = worker.seed - worker.id
        key = (pool * 0x9E3779B97F4A7C15 + number * 4099 + worker.num_workers) % _KEYS + 1
        slot = _FIRST + number % _STARTS * _WIDTH
        (*_, process) = multiprocessing.current_process()._identity  # noqa: SLF001 - no other names it
        if worker.id == 0:
            epoch, position = self._take()
            facts = [process, epoch, position, process ^ epoch ^ position ^ key]
            self._words[slot + 1 : slot + _WIDTH] = torch.tensor(facts)
            self._words[slot] = key
            return epoch, position
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            found, first, epoch, position, check = self._words[slot : slot + _WIDTH].tolist()
            is_whole = found == key and check == first ^ epoch ^ position ^ key
            if is_whole and worker.id <= process - first < worker.id + worker.num_workers:
                return epoch, position
            time.sleep(0.001)
        raise RuntimeError(
            f"worker 0 of {worker.num_workers} did not say within {_WAIT_S:.0f} s where to start"
        )

    def _take(self) -> tuple[int, int]:
        epoch, position = self.next
        self._words[_TAKEN : _TAKEN + 2] = torch.tensor([epoch, position])
        self._words[_NEXT : _NEXT + 2] = torch.tensor([epoch + 1, 0])
        return epoch, position
