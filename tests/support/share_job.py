"""Two ranks that share a stream, for tests of what goes wrong between them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headrace.client import Batch, Hedge, RemoteDataset, Sharding, Transport
from headrace.errors import HeadraceError


def _dataset(
    address: str, name: str = "d", share: Any = "broadcast", **options: Any
) -> RemoteDataset[Any]:
    sharding = Sharding(global_batch_size=8, share=share)
    return RemoteDataset(address, name, mesh={"tp": 2}, sharding=sharding, **options)


def _rows(address: str, rank: int) -> Any:
    """Two epochs, a step of the second twice, a resume within it, and a function of batches."""
    del rank

    def doubled(batch: Batch) -> list[Any]:
        rows: list[Any] = (2 * batch["x"]).tolist()
        return rows

    with _dataset(address, transform=doubled, epochs=2) as dataset:
        found = [list(dataset)]
        again = iter(dataset)
        next(again)
        dataset.reshard(mesh={"tp": 2}, at_step=8)
        found.append([next(again)])
        state = dataset.state_dict()
        dataset.load_state_dict(state)
        found[1] += list(dataset)
        return {"batches": found, "how": dataset.stats().transport_reason}


def _auto(address: str, rank: int) -> str:
    """What cannot be shared through memory, when any way will do."""
    del rank
    with _dataset(address, share="auto", transport=Transport(hedge=Hedge())) as dataset:
        next(iter(dataset))
        return dataset.stats().transport_reason


def _gone(address: str, rank: int) -> None:
    """What the rank that reads cannot read."""
    del rank
    next(iter(_dataset(address, "gone")))


def _again(address: str, rank: int) -> Any:
    """Loops that go on after an error of all: of the function, and of a read."""
    del rank
    fails = [False, True, False]

    def rows(batch: Batch) -> list[Any]:
        if fails and fails.pop(0):
            raise HeadraceError("the function fails")
        found: list[Any] = batch["x"].tolist()
        return found

    found: list[Any] = []
    with _dataset(address, transform=rows, epochs=1) as dataset:
        for _ in range(2):
            try:
                found += dataset
            except HeadraceError as error:
                found.append(type(error).__name__)
    gone = _dataset(address, "gone")
    for _ in range(2):
        try:
            next(iter(gone))
        except HeadraceError as error:
            found.append(type(error).__name__)
    return found


def _unlike(address: str, rank: int) -> None:
    """Ranks that ask for different columns."""
    next(iter(_dataset(address, columns=["x"] if rank else [])))


def _apart(address: str, rank: int) -> None:
    """Ranks at different places."""
    dataset = _dataset(address)
    dataset.seek(0, 8 * rank)
    next(iter(dataset))


def _dead(address: str, rank: int) -> None:
    """A rank that reads, and dies."""
    batches = iter(_dataset(address))
    next(batches)
    if rank == 0:
        return
    next(batches)


def run_rank(rank: int, folder: Path, address: str) -> None:
    """Try everything, and write down what came of it."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    cases: list[Callable[[str, int], Any]] = [_rows, _auto, _gone, _again, _unlike, _apart, _dead]
    found = {}
    for case in cases:
        try:
            found[case.__name__] = case(address, rank)
        except HeadraceError as error:
            found[case.__name__] = f"{type(error).__name__}: {error}"
    (folder / f"{rank}.json").write_text(json.dumps(found))


def main() -> None:
    """Run both ranks: arguments are a folder to meet in, and a server's address."""
    folder, address = sys.argv[1:]
    # No gang: one rank ends while the other still waits for it.
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if not ranks[-1]:
            run_rank(rank, Path(folder), address)
            os._exit(0)
    for each in ranks:
        os.waitpid(each, 0)


if __name__ == "__main__":
    main()
