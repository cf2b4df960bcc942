"""Note which samples a training saw, and boil it down to one digest.

Every rank appends what it trained on to a file of its own: per step the epoch, the position and
its sample ids in order. The slices of all ranks, laid end to end, are the global batch, so the
digest over all global batches does not depend on how many ranks there were, nor on how often the
training was killed and taken up again.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

SampleIds = NDArray[np.int64]


class BatchKey(NamedTuple):
    """Names a global batch; sorts as the batches come."""

    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a training saw, beside what it should have seen.

    Attributes:
        seen_digest: Of the global batches that the training saw, redone ones counted once.
        wanted_digest: Of those of an undisturbed run.
        samples_seen: Their number, redone ones counted once.
        samples_lost: Wanted but never seen.
        samples_repeated: Seen more often than wanted, redone steps aside.
        steps_redone: Steps after the last checkpoint that a new trainer did once more.
    """

    seen_digest: str
    wanted_digest: str
    samples_seen: int
    samples_lost: int
    samples_repeated: int
    steps_redone: int

    @property
    def equal(self) -> bool:
        """Whether the two runs saw the same samples in the same global batches, in order."""
        return self.seen_digest == self.wanted_digest


class SeenFile:
    """The file of one rank: int64 numbers, epoch, position, count and then the sample ids.

    Each step is one unbuffered write, so what was written survives a SIGKILL.
    """

    def __init__(self, path: Path) -> None:
        """Create the file, and its folder if need be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def append(self, key: BatchKey, sample_ids: SampleIds) -> None:
        """Note that this rank trained on ``(samples,) int64`` of a global batch."""
        head = np.array([key.epoch, key.position, sample_ids.size], dtype=np.int64)
        os.write(self._file, head.tobytes() + sample_ids.tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)


def read_attempt(paths: Sequence[Path]) -> dict[BatchKey, SampleIds]:
    """Put the ranks' slices together again.

    Args:
        paths: The files of all ranks of one process group, in the order of their ranks.

    Returns:
        The sample ids of each global batch that every rank trained on. A batch that some rank
        had not finished when all were killed is left out: its checkpoint never happened.
    """
    ranks = [_read(path) for path in paths]
    keys = set(ranks[0]).intersection(*ranks[1:])
    return {key: np.concatenate([rank[key] for rank in ranks]) for key in sorted(keys)}


def compare(
    attempts: Sequence[Mapping[BatchKey, SampleIds]], wanted: Mapping[BatchKey, SampleIds]
) -> Comparison:
    """Compare what the attempts of a training saw with an undisturbed pass.

    A step that two attempts did counts once; it must have had the same samples both times, which
    `samples_repeated` would show, as the second then counts beside the first.
    """
    seen: dict[BatchKey, SampleIds] = {}
    redone, extra = 0, 0
    for attempt in attempts:
        again = seen.keys() & attempt.keys()
        redone += len(again)
        extra += sum(attempt[key].size for key in again if not _same(seen[key], attempt[key]))
        seen |= attempt
    return Comparison(
        seen_digest=digest(seen),
        wanted_digest=digest(wanted),
        samples_seen=sum(ids.size for ids in seen.values()),
        samples_lost=(_counts(wanted) - _counts(seen)).total(),
        samples_repeated=extra + (_counts(seen) - _counts(wanted)).total(),
        steps_redone=redone,
    )


def digest(batches: Mapping[BatchKey, SampleIds]) -> str:
    """Hash the global batches in the order of training: 32 hexadecimal digits."""
    hasher = hashlib.blake2b(digest_size=16)
    for key in sorted(batches):
        hasher.update(np.array([*key, batches[key].size], dtype="<i8").tobytes())
        hasher.update(batches[key].astype("<i8").tobytes())
    return hasher.hexdigest()


def _read(path: Path) -> dict[BatchKey, SampleIds]:
    numbers = np.frombuffer(path.read_bytes(), dtype=np.int64)
    batches: dict[BatchKey, SampleIds] = {}
    start = 0
    while start < numbers.size:
        epoch, position, count = (int(number) for number in numbers[start : start + 3])
        batches[BatchKey(epoch, position)] = numbers[start + 3 : start + 3 + count]
        start += 3 + count
    return batches


def _same(left: SampleIds, right: SampleIds) -> bool:
    return bool(np.array_equal(left, right))


def _counts(batches: Mapping[BatchKey, SampleIds]) -> Counter[tuple[int, int]]:
    """Count how often each sample was seen in each epoch."""
    return Counter(
        (key.epoch, sample_id) for key, ids in batches.items() for sample_id in _integers(ids)
    )


def _integers(sample_ids: SampleIds) -> Iterable[int]:
    integers: list[int] = sample_ids.tolist()
    return integers
