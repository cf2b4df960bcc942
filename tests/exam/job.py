"""What one trainer is told, and what it is given to read; nothing but Python's own is imported."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

KIND = os.environ.get("EXAM_KIND", "")
"""Of the samples of `exam.waits`; empty for those of the questions."""

_KINDS = {"": (50, 4096, 24), "rows": (250, 4096, 48), "tokens": (250, 8192, 48)}
_KINDS["images"] = (125, 65536, 8)  # which take their time to decode

SHARDS = 48
SHARD_SAMPLES, PAYLOAD_BYTES, GLOBAL_BATCH = _KINDS[KIND]
"""Payloads are so large that two epochs do not fit into what lies between a server and a loop, and
the global batch is that of all ranks together: 24 are 12 a rank for two ranks, 8 for three, 3 for
eight, 4 for six."""

SAMPLES = SHARDS * SHARD_SAMPLES
"""48 shards of 50: every split over ranks and workers that is asked for comes out even."""

ROW_TOKENS = 256
"""Of a packed row; documents have 16 to 112."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One rank of one run.

    Attributes:
        entry: Module of the library's entry.
        folders: Where its data lies; of a mixture there are several.
        address: Of what serves, as ``host:port``; empty where nothing does.
        rank: This rank.
        world: Number of ranks.
        workers: Of each rank's loader.
        batch: Samples a batch of this rank.
        seed: Of the order.
        shuffle: Whether there is one.
        epochs: How many epochs the run has.
        log: File that gets a line of JSON for each batch.
        states: Folder for states.
        save_every: Steps between two of them; 0 saves none.
        resume: Folder of the states to go on from; empty to begin.
        resume_step: Their step.
        step_s: Seconds that a step takes.
        is_packed: Whether it reads rows of packed documents instead of samples.
        also: Process groups of a service, whose memory and processor time count too.
        names: Of the files in a folder that is in a store, which gives no lists.
        store: Environment variables of the S3 store that folders are in, if they are.
    """

    entry: str
    folders: tuple[str, ...]
    address: str = ""
    rank: int = 0
    world: int = 1
    workers: int = 0
    batch: int = GLOBAL_BATCH
    seed: int = 7
    shuffle: bool = True
    epochs: int = 2
    log: str = ""
    states: str = ""
    save_every: int = 7
    resume: str = ""
    resume_step: int = 0
    step_s: float = 0.0
    is_packed: bool = False
    also: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    store: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return it as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read such a line."""
        fields = json.loads(text)
        lists = {key: tuple(fields[key]) for key in ("folders", "also", "names")}
        return cls(**{**fields, **lists})

    def files(self, folder: str, pattern: str) -> list[str]:
        """Return the files of a folder, in a store by the names that are known."""
        if self.names:
            return [f"{folder}/{name}" for name in fnmatch.filter(self.names, pattern)]
        return sorted(str(path) for path in Path(folder).glob(pattern))


PICTURES = 16
"""How many different ones the images are; their folder is ``EXAM_PICTURES``."""


@cache
def _picture(number: int) -> bytes:
    return Path(os.environ["EXAM_PICTURES"], f"{number}.jpg").read_bytes()


def payload(sample_id: int) -> bytes:
    """Return the bytes that belong to an id, so that an altered sample shows."""
    if KIND == "images":
        return _picture(sample_id % PICTURES).ljust(PAYLOAD_BYTES, b"\0")
    return hashlib.shake_128(sample_id.to_bytes(8, "little")).digest(PAYLOAD_BYTES)


def document(sample_id: int) -> list[int]:
    """Return the tokens of a document, which all tell which one it is; none is 0."""
    return [sample_id + 1] * (16 + sample_id * 7919 % 97)


def shards(first_id: int, count: int) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the samples of each shard, as id and bytes."""
    for start in range(first_id, first_id + count, SHARD_SAMPLES):
        yield [(each, payload(each)) for each in range(start, start + SHARD_SAMPLES)]
