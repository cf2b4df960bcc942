"""Agree among the workers of a DataLoader on who reads which batches, and where to start.

Worker w of N reads batches w, w + N, w + 2 N, …, counted from the start of the iteration. A
DataLoader takes one batch from each worker in turn, so the loop gets the same order as without
workers.

Contract:

1. All workers of one iteration start at the same place: worker 0 writes it down under the
   iteration's key, and the others wait for that key. Two pools may have one seed, if the user seeds
   torch before each; what a worker 0 of another pool wrote is not read, by its process's number.
2. It is the place after the last batch that the main process handed to the loop, or the place that
   `seek` or `load_state_dict` moved to, when worker 0 starts. No worker moves it.
3. Each slot carries a checksum, so nobody reads half of a write.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import dataclass

import numpy as np
import torch
import xxhash
from torch.utils.data import get_worker_info

from headrace.client.loader.progress import LoopStart
from headrace.client.reader.reader import Place
from headrace.errors import InternalError

_SLOT_BYTES = 2048
"""A token takes at most 400 bytes, twice that in hexadecimal digits; the rest is arbitrary."""
_HEAD_BYTES = 16
_PLACE, _LOADED, _FIRST_START = range(3)
_STARTS = 8
"""Slots for the starts of iterations. A pool's slowest worker may be one iteration behind the
fastest, so two would do for one pool; the rest is for several loaders over one dataset."""
_FLAGS = (_FIRST_START + _STARTS) * _SLOT_BYTES
MOST_WORKERS = 4096
_WAIT_S = 60.0
"""Worker 0 starts before all others; spawned, it imports torch first. Arbitrary beyond that."""


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """This process's part of the batches: every ``count``-th one, from the ``index``-th on.

    Attributes:
        index: The worker, in [0, ``count``).
        count: Number of workers, >= 1.
        seed: A number that the workers of one pool share; another pool may have it too.
        first: The number of the process of worker 0 of its pool, or a little more, if others were
            started in between.
    """

    index: int
    count: int
    seed: int
    first: int = 0


def share_of_worker() -> WorkerPart | None:
    """Return this DataLoader worker's share, or None in any other process."""
    worker = get_worker_info()
    if worker is None:
        return None
    # Numbers that rise with each process that the main process starts; nothing else names a pool.
    numbers = multiprocessing.current_process()._identity  # noqa: SLF001
    first = numbers[-1] - worker.id if numbers else 0
    return WorkerPart(worker.id, worker.num_workers, worker.seed - worker.id, first)


class SharedPlace:
    """A few places in shared memory; forked and spawned processes share the same memory.

    The memory has no name in the file system, and is freed with the last process that maps it.
    """

    def __init__(self) -> None:
        self._memory = torch.zeros(_FLAGS + MOST_WORKERS, dtype=torch.uint8)
        self._memory.share_memory_()  # type: ignore[no-untyped-call] # torch leaves it so

    def publish(self, start: LoopStart) -> None:
        """Tell later iterations where to start; only the main process may call this."""
        self._write(_PLACE, start, key="")

    def agree(self, share: WorkerPart, number: int, own: LoopStart) -> LoopStart:
        """Return where all workers of an iteration start.

        Args:
            share: This worker's share.
            number: The number of earlier iterations of its pool.
            own: The place according to this worker's copy of the dataset.

        Raises:
            InternalError: Worker 0 wrote nothing for a minute.
        """
        key = f"{share.seed}/{share.count}/{number}"
        slot = _FIRST_START + (share.seed + number) % _STARTS
        if share.index == 0:
            start = self._latest(share, own)
            self._write(slot, start, key=key, first=share.first)
            return start
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            found = self._read(slot, key=key, share=share)
            if found is not None:
                return found
            time.sleep(0.001)
        raise InternalError(
            f"worker 0 of {share.count} did not say within {_WAIT_S:.0f} s where to start"
        )

    def note_finished(self, share: WorkerPart, start: LoopStart | None) -> None:
        """Note that a state loaded into a worker left it no batch of its epoch.

        If that is so for all workers of a pool, the next iteration starts with the next epoch.

        Args:
            share: The worker's share.
            start: The start of the next epoch, if this worker has read the last batch before it.
        """
        if start is not None:
            self._write(_LOADED, start, key="")
        self._finished[share.index] = 1

    @property
    def _finished(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return self._memory.numpy()[_FLAGS:]

    def _latest(self, share: WorkerPart, own: LoopStart) -> LoopStart:
        known = [own, self._read(_PLACE, key="")]
        if self._finished[: share.count].all():
            known.append(self._read(_LOADED, key=""))
        self._finished[:] = 0
        latest = own
        for start in known:
            if start is not None and start.is_after(latest):
                latest = start
        return latest

    def _slot(self, slot: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return self._memory.numpy()[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES]

    def _write(self, slot: int, start: LoopStart, *, key: str, first: int = 0) -> None:
        place = start.place
        content = json.dumps(
            {
                "key": key,
                "first": first,
                "moves": start.moves,
                "first_epoch": start.first_epoch,
                "resharded": start.resharded,
                "epoch": place.epoch,
                "position": place.position,
                "token": None if place.token is None else place.token.hex(),
            }
        ).encode()
        head = np.array([len(content), xxhash.xxh3_64_intdigest(content)], dtype=np.uint64)
        framed = head.tobytes() + content
        self._slot(slot)[: len(framed)] = np.frombuffer(framed, dtype=np.uint8)

    def _read(self, slot: int, *, key: str, share: WorkerPart | None = None) -> LoopStart | None:
        framed = self._slot(slot).tobytes()
        size, checksum = np.frombuffer(framed, dtype=np.uint64, count=2).tolist()
        content = framed[_HEAD_BYTES : _HEAD_BYTES + size]
        if not size or xxhash.xxh3_64_intdigest(content) != checksum:
            return None
        found = json.loads(content)
        if found["key"] != key:
            return None
        if share is not None and not 0 <= share.first - found["first"] < share.count:
            return None
        token = None if found["token"] is None else bytes.fromhex(found["token"])
        place = Place(found["epoch"], found["position"], token)
        return LoopStart(place, found["moves"], found["first_epoch"], found["resharded"])
