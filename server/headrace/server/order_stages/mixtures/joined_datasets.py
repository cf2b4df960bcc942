"""Join several datasets, with their samples and blocks end to end, and find samples in them.

Contract:

1. A sample is found in the block and at the place given by its own dataset.
2. The tables of a dataset are only read when one of its samples is looked up.
3. Datasets with no more than `_MAX_STARTS` blocks together are looked up together, once enough of
   them have been drawn from: dataset by dataset the lookups took 0.7 ms of a batch that had samples
   of 64, five times what a batch of one dataset takes (docs/decisions/order-of-mixtures.md).

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.joined_sources import split_by
from headrace.server.plan.compiled import search
from headrace.storage import OpenDataset, Search, Starts

_MAX_STARTS = 1 << 20
"""Their table takes 24 MiB at most."""

_FIRST_PART = 16
"""A table is made when it would hold twice as many datasets as the last one; the first counts as
twice a sixteenth, so an eighth. For 1,000 datasets with 600,000 blocks that takes 0.1 s."""


class JoinedDatasets:
    """The places of the samples of several datasets, with ids and blocks end to end.

    Attributes:
        first_ids: ``(datasets + 1,) int64``: where the ids of each begin, and the last end.
        first_blocks: The first block of each.
        sample_count: The number of all samples.
        fingerprint: The fingerprint of all of them together.
        raw_bytes: Bytes of all samples.
        stored_bytes: Bytes of all samples in the store.
    """

    def __init__(self, datasets: Sequence[OpenDataset], fingerprint: str) -> None:
        self._datasets = datasets
        self.first_ids = _starts([dataset.sample_count for dataset in datasets])
        self.first_blocks = _starts([dataset.block_count for dataset in datasets])
        self.sample_count = int(self.first_ids[-1])
        self.fingerprint = fingerprint
        self.raw_bytes = sum(dataset.raw_bytes for dataset in datasets)
        self.stored_bytes = sum(dataset.stored_bytes for dataset in datasets)
        self._is_drawn_from = np.diff(self.first_ids) == 0
        self._table: _StartTable | None = None

    def locate(
        self, sample_ids: NDArray[np.int64], *, search: Search = search
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each sample and its place in that block."""
        table = self._table
        if table is None:
            return self._located_each(sample_ids)
        blocks, offsets = search(table.starts, sample_ids)
        missing = table.missing(self.first_ids, sample_ids)
        if missing.size:
            blocks[missing], offsets[missing] = self._located_each(sample_ids[missing])
        return blocks, offsets

    def _located_each(
        self, sample_ids: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look up samples dataset by dataset, and record which datasets have been drawn from."""
        blocks = np.empty(sample_ids.size, np.int64)
        offsets = np.empty(sample_ids.size, np.int64)
        for index, places, own in split_by(self.first_ids, sample_ids):
            found, offsets[places] = self._datasets[index].locate(own, search=search)
            blocks[places] = found + self.first_blocks[index]
            self._is_drawn_from[index] = True
        if self.first_blocks[-1] <= _MAX_STARTS:
            self._renew_table()
        return blocks, offsets

    def _renew_table(self) -> None:
        """Make the table again when it would hold twice as many datasets, or all."""
        drawn_from = self._is_drawn_from.copy()
        count = len(self._datasets)
        held = count // _FIRST_PART if self._table is None else self._table.dataset_count
        if int(drawn_from.sum()) >= min(2 * held, count):
            self._table = self._made_table(drawn_from)

    def _made_table(self, drawn_from: NDArray[np.bool_]) -> _StartTable:
        """Return the starts of all blocks, from tables that are in memory by now.

        Samples of datasets that were not drawn from are distributed evenly over their blocks.
        """
        starts = []
        for index, dataset in enumerate(self._datasets):
            blocks = np.arange(dataset.block_count)
            own = (
                dataset.block_first_samples(blocks)
                if drawn_from[index]
                else blocks * dataset.sample_count // max(1, dataset.block_count)
            )
            starts.append(own + self.first_ids[index])
        return _StartTable(Starts(np.concatenate([*starts, self.first_ids[-1:]])), drawn_from)


@dataclass(frozen=True, slots=True, eq=False)
class _StartTable:
    """The first samples of the blocks of several datasets, with samples end to end.

    Attributes:
        starts: The first sample of each block.
        holds: ``(datasets,) bool``: whether the starts of a dataset's blocks are exact.
    """

    starts: Starts
    holds: NDArray[np.bool_]

    @property
    def dataset_count(self) -> int:
        """Return the number of datasets in the table."""
        return int(self.holds.sum())

    def missing(
        self, first_ids: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """Return the indices of samples whose datasets are not in the table."""
        if self.holds.all():
            return np.empty(0, np.intp)
        owners = np.searchsorted(first_ids, sample_ids, side="right") - 1
        return np.flatnonzero(~self.holds[owners])


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
