"""Random histories of jobs whose ranks die, join, stall and change their shares between steps.

How a reshard could give a wrong sample, each a fault that a history must find: a step whose rows
came from two divisions among ranks; rows of a step that was begun and not committed, lost or
counted twice; a newcomer or a rank that stood still, at another step than the others; what was
prefetched for the old share, handed over as the new one's; the end of an epoch that falls into a
change; and all of this while the server is lost.

The reference is the same order, read by one rank that nothing happens to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.cli.stored.row_counter import row_counter
from headrace.client import (
    Batch,
    BatchLoader,
    Deadlines,
    DecodeImage,
    NumpyDataset,
    Order,
    RandomResizedCrop,
    RemoteDataset,
    Selection,
    Sharding,
    Transport,
)
from headrace.storage import RowOptions, index_packing
from support.datasets import write_dataset
from support.images import noise_bytes
from support.proxy import Proxy
from support.running import server_of

_COUNTS = {"d": 61, "e": 23}
_MOST_STEPS = 10
_TRANSPORT = Transport(prefetch_bytes=2048, deadlines=Deadlines(connect_s=30, give_up_s=60))
_CROP = DecodeImage("image", transforms=[RandomResizedCrop(4)])

Rows = list[tuple[Any, ...]]


def _write(url: str, count: int, first: int) -> None:
    lengths = np.random.default_rng(first).integers(1, 50, count).tolist()
    table = pa.table(
        {
            "number": pa.array(range(first, first + count), pa.int64()),
            "image": [noise_bytes(number) for number in range(count)],
            "tokens": pa.array(
                [[first + number] * length for number, length in enumerate(lengths)],
                pa.list_(pa.int32()),
            ),
        }
    )
    write_dataset(url, table, shard_samples=[count // 3, count - count // 3], block_bytes=512)
    index_packing(url, RowOptions(32), count_rows=row_counter())


class Place:
    """A server that can be lost; another then comes, behind the same address.

    Args:
        urls: Of its datasets.
    """

    def __init__(self, urls: dict[str, str]) -> None:
        self._urls = urls
        self._server = server_of(urls, drain_s=0)
        self._proxy = Proxy(self._server.address)
        self.address = self._proxy.address

    def lose(self) -> None:
        """End the server in the middle of all its streams."""
        self._server.stop()
        self._server = server_of(self._urls, drain_s=0)
        self._proxy.upstream = self._server.address

    def close(self) -> None:
        """End the server."""
        self._proxy.close()
        self._server.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Two datasets of images and tokens."""
    folder: Path = tmp_path_factory.mktemp("elastic")
    urls = {name: str(folder / name) for name in _COUNTS}
    for at, (name, count) in enumerate(_COUNTS.items()):
        _write(urls[name], count, 1000 * at)
    with closing(Place(urls)) as found:
        yield found


@dataclass(frozen=True, slots=True)
class Job:
    """What all ranks of a job read.

    Attributes:
        make: Makes the dataset of a rank, by address, rank and world size.
        size: Samples of a global batch.
        is_dealt: Whether ranks get rows by cost, and not in their order.
    """

    make: Callable[[str, int, int], Any]
    size: int
    is_dealt: bool


def _job(random_: random.Random) -> Job:
    kind = random_.choice(["plain", "arrays", "filter", "mixture", "packed", "images", "dealt"])
    size = random_.choice([3, 4, 7, 12, 19])
    options: dict[str, Any] = {
        "seed": random_.randrange(1 << 40),
        "end": random_.choice(["drop_last", "uneven", "pad"]),
        "columns": ["number"],
        "epochs": _MOST_STEPS * size // 38 + 2,  # bounds what a server sends ahead
        "transport": _TRANSPORT,
        "order": Order(lanes=random_.choice([1, 1, 3])),
    }
    what: Any = "d"
    deal: Any = None
    if kind == "filter":
        what = Selection("d", where="number < 40", skips=[3, 17])
    elif kind == "mixture":
        what = [("d", 2.0), ("e", 1.0)]
    elif kind == "packed":
        what, options["columns"] = "d:32", ["tokens"]
    elif kind == "images":
        options |= {"columns": ["number", "image"], "stages": [_CROP]}
    elif kind == "dealt":
        deal = "balanced"
    cls: Any = NumpyDataset if kind == "arrays" else RemoteDataset

    def make(address: str, rank: int, world_size: int) -> Any:
        sharding = Sharding(global_batch_size=size, deal=deal)
        told = {"rank": rank, "world_size": world_size, "sharding": sharding, **options}
        if kind == "plain":
            # The size of the global batch at opening is kept.
            told |= {"sharding": None, "batch_size": size}
        return cls(address, what, **told)

    return Job(make, size, is_dealt=deal is not None)


def _rows(batch: Any) -> Rows:
    """Return the rows of a batch, of any kind of dataset."""
    if isinstance(batch, Batch):
        batch = batch.to_numpy()
    return [tuple(_plain(column[row]) for column in batch.values()) for row in range(_len(batch))]


def _len(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))


def _plain(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value


def _forever(dataset: Any) -> Iterator[Any]:
    while True:
        yield from dataset


@dataclass(slots=True)
class Rank:
    """A rank of a job, at its own place."""

    dataset: Any
    batches: Iterator[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.batches = _forever(self.dataset)


@dataclass(slots=True)
class History:
    """A job, what happens to it, and what it has trained on."""

    random_: random.Random
    place: Place
    job: Job
    ranks: list[Rank] = field(default_factory=list)
    away: list[Rank] = field(default_factory=list)
    steps: list[Rows] = field(default_factory=list)

    def live(self, total: int) -> None:
        """Train until a number of steps are committed."""
        self._join(self.random_.randint(1, min(4, self.job.size)))
        self._agree()
        while len(self.steps) < total:
            if self.random_.random() < 0.4:
                self._change()
                self._agree()
            if self.random_.random() < 0.04:
                self.place.lose()
            self._step()
        for rank in [*self.ranks, *self.away]:
            rank.dataset.close()

    def _step(self) -> None:
        """Begin a step on some ranks or all, in any order, and commit it or lose it."""
        begun = self.random_.sample(self.ranks, len(self.ranks))
        is_lost = self.random_.random() < 0.25
        if is_lost:
            begun = begun[: self.random_.randint(0, len(begun))]
        found = {id(rank): _rows(next(rank.batches)) for rank in begun}
        if is_lost:
            if self.random_.random() < 0.5:
                self._change()
            self._agree()
            return
        self.steps.append([row for rank in self.ranks for row in found[id(rank)]])
        for rank in self.ranks:
            rank.dataset.committed(len(self.steps) - 1)

    def _change(self) -> None:
        """Let ranks die, stall, come back, be new, or all of them start over."""
        kind = self.random_.choice(["die", "stall", "join", "back", "over"])
        if kind == "over":
            state = self._state()
            for rank in self.ranks:
                rank.dataset.close()
            self.ranks = []
            self._join(self.random_.randint(1, min(5, self.job.size)), state)
        elif kind == "join":
            self._join(self.random_.randint(1, 2), self.random_.choice([None, self._state()]))
        elif kind == "back":
            self.ranks += self.away
            self.away = []
        elif len(self.ranks) > 1:
            gone = self.ranks.pop(self.random_.randrange(len(self.ranks)))
            if kind == "die":
                gone.dataset.close()
            else:
                self.away.append(gone)
        while len(self.ranks) > self.job.size:
            self.ranks.pop().dataset.close()

    def _state(self) -> Any:
        """Return what a checkpoint has: the state after the last committed step."""
        dataset = self.random_.choice(self.ranks).dataset
        return dataset.token if isinstance(dataset, NumpyDataset) else dataset.state_dict()

    def _join(self, count: int, state: Any = None) -> None:
        for _ in range(count):
            dataset = self.job.make(self.place.address, 0, 1)
            if isinstance(state, bytes):
                dataset.resume(state)
            elif state is not None:
                dataset.load_state_dict(state)
            if not isinstance(dataset, NumpyDataset) and self.random_.random() < 0.3:
                dataset = BatchLoader(dataset)
            self.ranks.append(Rank(dataset))

    def _agree(self) -> None:
        """Give each rank its share from the step that comes next, as a rank of a mesh."""
        self.random_.shuffle(self.ranks)
        copies = self.random_.choice([1, 1, 2])
        step, world = len(self.steps), len(self.ranks) * copies
        for number, rank in enumerate(self.ranks):
            rank.dataset.reshard(
                rank=number * copies + self.random_.randrange(copies),
                world_size=world,
                mesh={"dp": len(self.ranks), "tp": copies},
                at_step=step,
            )
            rank.dataset.committed(step - 1)


def _undisturbed(job: Job, address: str, total: int) -> list[Rows]:
    with job.make(address, 0, 1) as dataset:
        return [_rows(batch) for batch in islice(_forever(dataset), total)]


@pytest.mark.parametrize(
    "seed", [*range(50), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(50, 1000))]
)
def test_committed_steps_are_those_of_a_run_that_nothing_happens_to(
    seed: int, place: Place
) -> None:
    """None is lost, none comes twice, and every row is the same."""
    random_ = random.Random(seed)
    job = _job(random_)
    history = History(random_, place, job)
    total = random_.randint(3, _MOST_STEPS)

    history.live(total)

    wanted, found = _undisturbed(job, place.address, total), history.steps
    if job.is_dealt:
        wanted, found = ([sorted(rows) for rows in steps] for steps in (wanted, found))
    assert wanted == found
