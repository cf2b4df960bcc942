"""What an entry, one library's module in `exam.entries`, has to offer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from exam.job import Job

Batch = tuple[Sequence[int], Sequence[Any]]
"""The ids of a batch's samples, and their bytes; of images, which are decoded, their pixels."""

Shards = Iterable[list[tuple[int, bytes]]]
"""Samples as `exam.job.shards` yields them."""


class NotOffered(Exception):  # noqa: N818 - no error: an answer
    """The library's documentation has no way to do what is asked."""


class Stream(Protocol):
    """What a training loop has in its hands."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, counted from 0; of a resumed one, those that are left."""
        ...

    def state(self) -> Any:
        """Return what this rank puts into a checkpoint; it is pickled."""
        ...


class Entry(Protocol):
    """One library, each question answered by the way that its documentation shows."""

    def write(self, folder: Path, shards: Shards) -> None:
        """Store samples in the library's own form, a shard as near to a file as it goes."""
        ...

    def append(self, folder: Path, shards: Shards) -> None:
        """Store more samples in the same data set.

        Raises:
            NotOffered: The documentation has no such way.
        """
        ...

    def write_documents(self, folder: Path, shards: Shards) -> None:
        """Store the document of each sample; of libraries that pack documents into rows."""
        ...

    def open_packed(self, job: Job, epoch: int, states: Sequence[Any]) -> Stream:
        """Open rows of packed documents; batches are the tokens of documents, and no bytes."""
        ...

    def open_stream(self, job: Job, epoch: int, states: Sequence[Any]) -> Stream:
        """Open the data.

        Args:
            job: For which rank, with which options.
            epoch: To start in.
            states: What every rank of the earlier run has saved, by rank; empty to begin.

        Raises:
            NotOffered: The documentation has no such way.
        """
        ...
