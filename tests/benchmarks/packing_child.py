"""Another library's packed rows, in a process of its own, for `bench_packing`.

    python packing_child.py lit|mosaic FOLDER LENGTH ROWS WORKERS

FOLDER has ``tokens.npy`` and ``lengths.npy``: documents, end to end. The library's files are
written beside them. Then each line of the input is a number of seconds to read for; the answer is
a line of JSON: the real tokens that came, the seconds that it took, and the processor time of this
process and its workers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

_WARM_BATCHES = 8
# Documents that the collator packs together, in tokens of the batch that it makes of them: the
# fullest rows of a batch are kept, and the rest of the documents go into the next one.
_CANDIDATES = 1.25


def main() -> None:
    """Write, then read as long as is asked."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    library, place, *numbers = sys.argv[1:]
    length, rows, workers = map(int, numbers)
    folder = Path(place)
    tokens, lengths = np.load(folder / "tokens.npy"), np.load(folder / "lengths.npy")
    documents = np.split(tokens, np.cumsum(lengths)[:-1])
    make = {"lit": _lit, "mosaic": _mosaic}[library]
    loader = make(folder / library, documents, length, rows, workers)
    batches = _forever(loader)
    for _ in range(_WARM_BATCHES):
        next(batches)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        found = _read(batches, float(line))
        print(json.dumps(found), file=answers, flush=True)
    os._exit(0)


def _read(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    began, used, real, cells = time.monotonic(), _processor_s(), 0, 0
    while (now := time.monotonic()) - began < seconds:
        _, count, size = next(batches)
        real += count
        cells += size
    return {
        "seconds": now - began,
        "real": real,
        "cells": cells,
        "processor_s": _processor_s() - used,
    }


def _forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _processor_s() -> float:
    """Return the processor time of this process and its children."""
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += map(int, (task / "children").read_text(encoding="utf-8").split())
        except OSError:
            continue
        total += sum(map(int, fields.split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def _lit(place: Path, documents: list[Any], length: int, rows: int, workers: int) -> Any:
    """Rows cut out of all tokens end to end, wherever documents begin."""
    from litdata import (  # type: ignore[import-not-found] # noqa: PLC0415 - one of two
        StreamingDataLoader,
        StreamingDataset,
        TokensLoader,
    )
    from litdata.streaming.writer import (  # type: ignore[import-not-found] # noqa: PLC0415 - the same
        BinaryWriter,
    )

    place.mkdir()
    writer = BinaryWriter(str(place), chunk_bytes=64 << 20, item_loader=TokensLoader())
    for number, document in enumerate(documents):
        writer[number] = torch.from_numpy(document.copy())
    writer.done()
    writer.merge()
    dataset = StreamingDataset(
        str(place), item_loader=TokensLoader(block_size=length), shuffle=True, seed=7
    )
    loader = StreamingDataLoader(
        dataset, batch_size=rows, num_workers=workers, persistent_workers=workers > 0
    )
    return _Counted(loader)


class _Counted:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield batch, batch.numel(), batch.numel()


def _mosaic(place: Path, documents: list[Any], length: int, rows: int, workers: int) -> Any:
    """Documents, packed by a collator into rows; it keeps what finds no room for the next batch."""
    from streaming import (  # type: ignore[import-not-found] # noqa: PLC0415 - one of two
        MDSWriter,
        StreamingDataLoader,
        StreamingDataset,
    )

    with MDSWriter(out=str(place), columns={"tokens": "ndarray:int32"}) as writer:
        for document in documents:
            writer.write({"tokens": document})
    mean = sum(map(len, documents)) / len(documents)
    count = max(1, round(rows * length / mean))
    dataset = StreamingDataset(local=str(place), shuffle=True, shuffle_seed=7, batch_size=count)
    return StreamingDataLoader(
        dataset,
        batch_size=count,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=Packer(length, rows),
        drop_last=True,
    )


class Packer:
    """Packs documents by first fit, the longest first, as collators of training code do."""

    def __init__(self, length: int, rows: int) -> None:
        self._length = length
        self._rows = rows
        self._left: list[Any] = []

    def __call__(self, samples: list[dict[str, Any]]) -> tuple[Any, int, int]:
        """Return rows with the number of each token's document, the real tokens, and all."""
        found = [*self._left, *(sample["tokens"][: self._length] for sample in samples)]
        found.sort(key=len, reverse=True)
        rooms: list[int] = []
        bins: list[list[Any]] = []
        for document in found:
            size = len(document)
            at = next((at for at, room in enumerate(rooms) if room >= size), -1)
            if at < 0:
                bins.append([document])
                rooms.append(self._length - size)
            else:
                bins[at].append(document)
                rooms[at] -= size
        fullest = sorted(range(len(bins)), key=rooms.__getitem__)
        kept = fullest[: self._rows]
        most = int((_CANDIDATES - 1) * self._rows) + 1
        self._left = [
            document for at in fullest[self._rows : self._rows + most] for document in bins[at]
        ]
        rows = np.zeros((self._rows, self._length), np.int32)
        numbers = np.full((self._rows, self._length), -1, np.int32)
        real = 0
        for row, at in enumerate(kept):
            start = 0
            for number, document in enumerate(bins[at]):
                end = start + len(document)
                rows[row, start:end] = document
                numbers[row, start:end] = number
                start = end
            real += start
        return torch.from_numpy(np.stack([rows, numbers])), real, rows.size


if __name__ == "__main__":
    main()
