"""Pieces of blocks: the samples of a block that a window of an epoch needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.server.cache.fetch.block_runs import BlockReader, read_run, run_blocks
from headrace.storage import ReadBlock


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces of a dataset that a window needs.

    Attributes:
        blocks: ``(pieces,) int64``: their blocks, ascending.
        firsts: ``(pieces + 1,) int64``: where the places of each piece start, and the end.
        places: ``(samples,) int32``: the places in their blocks of the samples that the pieces
            hold, piece after piece.
    """

    blocks: NDArray[np.int64]
    firsts: NDArray[np.int64]
    places: NDArray[np.int32]

    def of(self, indices: NDArray[np.intp], blocks: NDArray[np.int64]) -> Pieces:
        """Return some of the pieces, given by rising index, as those of blocks with new numbers."""
        counts = np.diff(self.firsts)[indices]
        firsts = np.concatenate([[0], np.cumsum(counts)])
        starts = np.repeat(self.firsts[indices] - firsts[:-1], counts)
        return Pieces(blocks, firsts, self.places[starts + np.arange(firsts[-1])])


class PieceReader:
    """Reads blocks, and keeps the samples of a window.

    Args:
        reader: Reads blocks.
        pieces: The samples to keep of each block.
    """

    def __init__(self, reader: BlockReader, pieces: Pieces) -> None:
        self._reader = reader
        self._pieces = pieces
        self._at = dict(zip(pieces.blocks.tolist(), range(pieces.blocks.size), strict=True))

    def read_block(self, block: int) -> pa.RecordBatch:
        """Fetch, verify and decode one piece."""
        return self._kept(block, self._reader.read_block(block))

    def run_blocks(self, max_bytes: int) -> int:
        """Return how many neighbouring blocks to read together."""
        return run_blocks(self._reader, max_bytes)

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Read blocks together, and keep a piece of each; errors are values."""
        for read in read_run(self._reader, blocks):
            if isinstance(read.content, pa.RecordBatch):
                yield replace(read, content=self._kept(read.block, read.content))
            else:
                yield read

    def _kept(self, block: int, content: pa.RecordBatch) -> pa.RecordBatch:
        first, end = self._pieces.firsts[self._at[block] :][:2].tolist()
        return content.take(self._pieces.places[first:end])
