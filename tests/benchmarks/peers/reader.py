"""What every reader of the comparison has to offer. It imports nothing but Python's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol


class Stream(Protocol):
    """An opened, shuffled, endless reading of the samples."""

    def epoch(self) -> Iterator[Mapping[str, Any]]:
        """Yield the batches of the rest of an epoch; the next call begins the next one.

        Values are what a training loop would take: arrays or tensors of numbers, and lists of
        ``bytes`` or ``str``.
        """
        ...

    def state(self) -> Any:
        """Return where the stream is, or None if the library can't resume inside an epoch."""
        ...

    def close(self) -> None:
        """End workers and free what it holds."""
        ...


class Reader(Protocol):
    """One library, on one kind of samples.

    Attributes:
        files: The folder of its files; they are read once before each run.
    """

    files: Path

    def prepare(self) -> None:
        """Do what is not measured, before each opening: empty a cache that has to be cold."""
        ...

    def open(self, workers: int, state: Any) -> Stream:
        """Open a shuffled epoch, or go on from a state."""
        ...

    def close(self) -> None:
        """End servers."""
        ...


REPEATED = "s3"
"""Below a folder of samples: where `repeat` of each reader's module puts what a store serves."""

REPEATED_BYTES = 2 << 30
"""How much that is at least, in bytes of samples."""

CACHE_BYTES = REPEATED_BYTES // 5
"""What every reader may keep of it."""


def link_copies(files: Mapping[str, Path], folder: Path, times: int) -> Iterator[tuple[str, str]]:
    """Give files several names, as if there were more of them.

    Args:
        files: Files by their names.
        folder: Where the links go, on the same file system.
        times: Names of each file.

    Yields:
        Name of a file, and one of the names that it has there: ``3-NAME``.
    """
    for number, name in itertools.product(range(times), files):
        (folder / f"{number}-{name}").hardlink_to(files[name])
        yield name, f"{number}-{name}"


def touch(folder: Path) -> None:
    """Read every file once, so that it lies in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
