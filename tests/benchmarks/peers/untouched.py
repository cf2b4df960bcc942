"""headrace again, for loops that do not look at every string: they stay bytes and offsets.

A string becomes `str` when it is touched. The other libraries make all of them, so beside this row
stands one in which we do so too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.peers import ours


class Reader(ours.Reader):
    """Reads through a server of its own."""

    def open(self, workers: int, state: Any) -> ours.Stream:
        """Open a dataset; it needs no workers."""
        return _Stream(super().open(workers, state).dataset)


class _Stream(ours.Stream):
    def epoch(self) -> Iterator[Mapping[str, Any]]:
        """Yield batches as they come."""
        yield from self.dataset
