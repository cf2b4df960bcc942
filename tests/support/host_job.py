"""Processes of one host that share a stream, and what happens to them, for tests.

The one that runs as a program forks the ranks, which then do as they are told.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from headrace.client import (
    Batch,
    BatchLoader,
    Deadlines,
    NumpyDataset,
    RemoteDataset,
    Sharding,
    Transport,
)
from headrace.errors import HeadraceError

DEADLINES = Deadlines(connect_s=20, silence_s=1.5, give_up_s=30, fallback_s=5)
KINDS = ("plain", "device", "transform", "numpy")
_LATEST_S = 60.0


def digest(rows: Any) -> str:
    """Return what tells batches apart."""
    return blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=8).hexdigest()


def _of_batch(batch: Batch) -> str:
    return digest(batch["x"].numpy())


def dataset_of(kind: str, *of: str, **options: Any) -> Any:
    """Make a dataset whose ranks share, and take batches in one of several ways."""
    if kind == "numpy":
        return NumpyDataset(*of, **options)
    if kind == "device":
        options["device"] = "cpu"
    return RemoteDataset(*of, transform=_of_batch if kind == "transform" else None, **options)


def _shown(kind: str, batch: Any) -> str:
    if kind == "transform":
        return str(batch)
    return digest(batch["x"]) if kind == "numpy" else _of_batch(batch)


class _Loop:
    """What a rank does when it is told to."""

    def __init__(self, kind: str, address: str, rank: int, count: int, options: Any) -> None:
        self._kind = kind
        self._dataset = dataset_of(
            *(kind, address, options.get("name", "d")),
            rank=rank,
            world_size=count,
            mesh={"tp": count},
            batch_size=options["batch_size"],
            seed=options["seed"],
            epochs=options.get("epochs"),
            sharding=Sharding(share="ring"),
            transport=Transport(deadlines=DEADLINES, prefetch_bytes=options["prefetch_bytes"]),
        )
        self._loop = self._dataset
        if kind == "loader":
            self._loop = BatchLoader(
                self._dataset, num_workers=2, persistent_workers=True, start_method="fork"
            )
        self._batches = iter(self._loop)

    def next(self) -> list[Any]:
        """Take a batch, of the next epoch if this one has ended."""
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self._loop)
            batch = next(self._batches)
        return [_shown(self._kind, batch), self.state()]

    def state(self) -> str:
        """Return the token after the last batch."""
        if self._kind == "numpy":
            return (self._dataset.token or b"").hex()
        return base64.b64decode(self._dataset.state_dict()["token"]).hex()

    def load(self, state: str) -> None:
        """Go on after another batch."""
        self._dataset.resume(bytes.fromhex(state))
        self._batches = iter(self._loop)

    def reshard(self, rank: int, count: int) -> None:
        """Be another rank of another mesh."""
        self._dataset.reshard(rank=rank, world_size=count, mesh={"tp": count})

    def fork(self) -> int:
        """Fork a process that does nothing."""
        pid = os.fork()
        if not pid:
            time.sleep(_LATEST_S)
            os._exit(0)
        return pid

    def reason(self) -> str:
        """Return how batches come."""
        if self._kind == "numpy":
            return str(self._dataset.transport_reason)
        return str(self._dataset.stats().transport_reason)


@dataclass(slots=True, eq=False)
class Rank:
    """A process, and what it has been given."""

    pid: int
    wire: Connection
    kind: str
    found: list[str] = field(default_factory=list)

    def ask(self, *said: Any) -> None:
        """Tell the rank what to do."""
        self.wire.send(said)

    def answer(self) -> Any:
        """Return what came of it; raise if that takes too long."""
        if not self.wire.poll(_LATEST_S):
            raise TimeoutError(f"rank {self.pid} ({self.kind}) hangs")
        found = self.wire.recv()
        if isinstance(found, HeadraceError):
            raise found
        return found

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.wire.close()


def forked(make: Callable[[], Any], others: list[Rank], kind: str) -> Rank:
    """Fork a rank, which makes an object and calls its methods."""
    here, there = Pipe()
    pid = os.fork()
    if pid:
        there.close()
        return Rank(pid, here, kind)
    for each in others:
        each.wire.close()
    here.close()
    try:
        loop = make()
        while True:
            name, *arguments = there.recv()
            try:
                there.send(getattr(loop, name)(*arguments))
            except HeadraceError as error:
                there.send(error)
    except EOFError:
        os._exit(0)
    except BaseException:  # noqa: BLE001 - said aloud, and the parent notices
        traceback.print_exc()
    os._exit(1)


class History:
    """A random history of one group, compared with what a process alone gets."""

    def __init__(self, seed: int, address: str, wanted: list[str], tokens: list[str]) -> None:
        """Start the ranks; ``wanted`` and ``tokens`` are of all batches, one after another."""
        self._random = random.Random(seed)
        self._address, self._wanted, self._tokens = address, wanted, tokens
        self._step, self._ranks = 0, list[Rank]()
        self._options = {
            "batch_size": 8,
            "seed": 7,
            "prefetch_bytes": self._random.choice([0, 1 << 16, 64 << 20]),
        }
        self.log: list[str] = []
        count = self._random.randint(2, 4)
        for rank in range(count):
            self._join(rank, count)

    def _join(self, rank: int, count: int) -> None:
        kind = self._random.choice(KINDS)
        new = forked(
            lambda: _Loop(kind, self._address, rank, count, self._options), self._ranks, kind
        )
        if self._step:
            new.ask("load", self._tokens[self._step - 1])
            new.answer()
        self._ranks.insert(rank, new)

    def _take(self, *, until: Rank | None = None) -> None:
        """Take a batch on all ranks; kill one of them meanwhile."""
        for each in self._ranks:
            each.ask("next")
        if until is not None:
            time.sleep(self._random.choice([0, 0.0005, 0.002, 0.01]))
            self._lose(until)
        for each in self._ranks:
            found, token = each.answer()
            assert self._wanted[self._step] == found, f"step {self._step} of {each.kind}"
            assert self._tokens[self._step] == token
        self._step += 1

    def _lose(self, rank: Rank) -> None:
        self._ranks.remove(rank)
        rank.kill()

    def _leader(self) -> Rank | None:
        for each in self._ranks:
            each.ask("reason")
        reads = [each.answer() for each in self._ranks]
        whole = [
            each
            for each, reason in zip(self._ranks, reads, strict=True)
            if "this process" in reason
        ]
        return whole[0] if whole else None

    def _renumber(self) -> None:
        for rank, each in enumerate(self._ranks):
            each.ask("reshard", rank, len(self._ranks))
        for each in self._ranks:
            each.answer()

    def run(self, actions: int) -> None:
        """Let things happen, and compare."""
        for _ in range(actions):
            for _ in range(self._random.choice([0, 1, 2, 5])):
                self._take()
            name = self._random.choice(["leader", "leader", "other", "join", "reshard", "load"])
            victim = self._leader() if name == "leader" else self._random.choice(self._ranks)
            self.log.append(f"{name} at {self._step}")
            if name in ("leader", "other") and len(self._ranks) > 1:
                how = self._random.choice(["between", "within"])
                if how == "between":
                    self._lose(victim or self._ranks[0])
                else:
                    self._take(until=victim or self._ranks[0])
            elif name == "join" and len(self._ranks) < 5:
                # As torch's elastic agent does it: all agree on the new mesh.
                self._join(len(self._ranks), len(self._ranks) + 1)
                self._renumber()
            elif name == "reshard":
                self._random.shuffle(self._ranks)
                self._renumber()
            elif name == "load" and self._step:
                self._step = self._random.randint(1, self._step)
                for each in self._ranks:
                    each.ask("load", self._tokens[self._step - 1])
                for each in self._ranks:
                    each.answer()
            self._take()

    def close(self) -> None:
        """End all ranks."""
        for each in self._ranks:
            each.kill()


def _group(address: str, kinds: Sequence[str], name: str = "d", epochs: int = 2) -> list[Rank]:
    options = {
        "batch_size": 8,
        "seed": 7,
        "prefetch_bytes": 64 << 20,
        "name": name,
        "epochs": epochs,
    }
    ranks: list[Rank] = []
    for rank, kind in enumerate(kinds):
        ranks.append(forked(partial(_Loop, kind, address, rank, len(kinds), options), ranks, kind))
    return ranks


def _step(ranks: Sequence[Rank]) -> list[str]:
    """Take a batch on all ranks together; return what each found."""
    for each in ranks:
        each.ask("next")
    return [_outcome(each)[0] for each in ranks]


def _outcome(rank: Rank) -> list[str]:
    try:
        return list(rank.answer())
    except HeadraceError as error:
        return [type(error).__name__, ""]


def _reasons(ranks: Sequence[Rank]) -> list[str]:
    for each in ranks:
        each.ask("reason")
    return [str(each.answer()) for each in ranks]


def _readers(ranks: Sequence[Rank]) -> list[int]:
    return [at for at, each in enumerate(_reasons(ranks)) if "shared: this process" in each]


def _together(address: str) -> Any:
    """Two epochs of 40 batches, in every way that a loop can take them."""
    ranks = _group(address, KINDS)
    found = [_step(ranks) for _ in range(80)]
    return {"found": found, "reasons": _reasons(ranks), "ranks": ranks}


def _workers(address: str) -> Any:
    """The same, by two workers each."""
    ranks = _group(address, ["loader", "loader"])
    return {"found": [_step(ranks) for _ in range(80)], "ranks": ranks}


def _opening(address: str) -> Any:
    """The first rank is killed while it opens the stream."""
    found = []
    for wait_s in (0.0, 0.005, 0.02, 0.05):
        ranks = _group(address, ["plain", "numpy", "transform"])
        ranks[0].ask("next")
        time.sleep(wait_s)
        ranks.pop(0).kill()
        found.append([_step(ranks) for _ in range(10)])
        for each in ranks:
            each.kill()
    return {"found": found, "ranks": []}


def _stopped(address: str) -> Any:
    """The rank that reads is stopped for longer than others wait, and goes on."""
    ranks = _group(address, ["plain", "numpy", "device"])
    found = [_step(ranks)]
    reader = ranks.pop(_readers(ranks)[0])
    os.kill(reader.pid, signal.SIGSTOP)
    found += [_step(ranks) for _ in range(39)]
    reasons = _reasons(ranks)
    os.kill(reader.pid, signal.SIGCONT)
    alone = [_step([reader]) for _ in range(39)]
    return {"found": found, "alone": alone, "reasons": reasons, "ranks": [*ranks, reader]}


def _idle(address: str) -> Any:
    """A rank that takes no batches holds the others up for a while, and gets its own."""
    ranks = _group(address, ["plain", "numpy"])
    found = [_step(ranks)]
    reader = _readers(ranks)[0]
    found += [_step([ranks[reader]]) for _ in range(79)]
    return {
        "found": found,
        "alone": [_step([ranks[1 - reader]]) for _ in range(79)],
        "reasons": _reasons(ranks),
        "ranks": ranks,
    }


def _forked(address: str) -> Any:
    """The rank that reads has forked a process, which outlives it."""
    ranks = _group(address, ["plain", "plain"])
    found = [_step(ranks)]
    reader = ranks.pop(_readers(ranks)[0])
    reader.ask("fork")
    child = reader.answer()
    reader.kill()
    began = time.monotonic()
    found += [_step(ranks) for _ in range(39)]
    seconds = time.monotonic() - began
    os.kill(child, signal.SIGKILL)
    return {"found": found, "seconds": seconds, "ranks": ranks}


def _gone(address: str) -> Any:
    """A dataset that no server has."""
    ranks = _group(address, ["plain", "numpy", "device"], "gone")
    return {"found": [_step(ranks) for _ in range(2)], "ranks": ranks}


SCENARIOS: tuple[Callable[[str], Any], ...] = (
    _together,
    _workers,
    _opening,
    _stopped,
    _idle,
    _forked,
    _gone,
)


def _scenario(name: str, address: str) -> None:
    """Write down what came of a scenario."""
    [scenario] = [each for each in SCENARIOS if each.__name__ == f"_{name}"]
    found = scenario(address)
    for each in found.pop("ranks"):
        each.kill()
    sys.stdout.write(json.dumps(found))


def _histories(address: str, path: str, first: str, count: str, actions: str) -> None:
    """Run histories; ``path`` is a file of what is right."""
    wanted, tokens = json.loads(Path(path).read_text())
    for seed in range(int(first), int(first) + int(count)):
        history = History(seed, address, wanted, tokens)
        try:
            history.run(int(actions))
        finally:
            sys.stderr.write(f"history {seed}: {history.log}\n")
            history.close()


def main() -> None:
    """Run ``scenario NAME ADDRESS`` or ``histories ADDRESS PATH FIRST COUNT ACTIONS``."""
    what, *arguments = sys.argv[1:]
    if what == "scenario":
        _scenario(*arguments)
    else:
        _histories(*arguments)


if __name__ == "__main__":
    main()
