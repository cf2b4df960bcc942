"""Read with DataLoader's forked workers, in a process that has not used gRPC itself.

Usage: python streaming_job.py FOLDER PAGE
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace.compat.streaming import Stream, StreamingDataLoader, StreamingDataset


def _epoch(loader: DataLoader[Any]) -> list[list[int]]:
    torch.manual_seed(0)  # so that each pool of workers has the same seed
    return [batch["x"].tolist() for batch in loader]


def _of_page(page: Path, folder: Path) -> list[int]:
    """Run the first program of a page; return the roots of what its dataset holds in an epoch."""
    program, *_ = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    os.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(program, names)  # noqa: S102 - our own page
    return sorted(round(each**0.5) for batch in names["loader"] for each in batch.tolist())


def main(folder: Path, page: Path) -> None:
    """Print what was read, by how."""

    def made(**options: Any) -> StreamingDataset:
        given = {"local": str(folder / "a"), "shuffle": True, "shuffle_seed": 7, **options}
        return StreamingDataset(batch_size=4, **given)

    found: dict[str, Any] = {"page": _of_page(page, folder)}
    loader: DataLoader[Any] = DataLoader(made(), batch_size=4, num_workers=2)
    found["fresh"] = [_epoch(loader) for _ in range(3)]
    loader = DataLoader(made(), batch_size=4, num_workers=3, persistent_workers=True)
    found["kept"] = [_epoch(loader) for _ in range(3)]
    first = StreamingDataLoader(made(), batch_size=4, num_workers=2)
    _epoch(first)
    for _ in zip(range(3), first, strict=False):
        state = first.state_dict()
    resumed = StreamingDataLoader(made(), batch_size=4, num_workers=3)
    resumed.load_state_dict(state or {})
    found["resumed"] = _epoch(resumed)
    streams = [Stream(local=str(folder / "a")), Stream(local=str(folder / "b"), choose=7)]
    loader = DataLoader(made(local=None, shuffle=False, streams=streams), 4, num_workers=2)
    found["in sequence"] = [_epoch(loader) for _ in range(2)]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
