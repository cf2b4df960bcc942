"""Several datasets that are drawn from together, or read from by id."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import (
    DealSpec,
    KeptMixtureOrder,
    MixtureOrder,
    MixtureSpec,
    OrderSpec,
    Skips,
    Token,
    joined_digest,
)
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.source import Blocks
from headrace.server.datasets.common_columns import SAMPLE_PAIRS, DatasetColumns, agreed_columns
from headrace.server.datasets.mixture_blocks import JoinedBlocks, split_by
from headrace.server.datasets.served import Part
from headrace.server.datasets.served_dataset import Retirement, ServedDataset
from headrace.server.layout.block_layout import block_layout
from headrace.server.plan.dealing import Dealer, Ranks
from headrace.server.plan.find_samples import Finder, KeptFinder, PlainFinder, lane_bytes, search
from headrace.server.plan.skip_lists import digest_of
from headrace.server.plan.stream_request import BatchesRequest, Readable
from headrace.storage import Starts
from headrace.v1 import shard_service_pb2 as pb

# Of mixtures with no more blocks they are all looked up together: dataset by dataset the lookups
# took most of a batch that had samples of 64. It takes 4 MiB at most.
_MAX_STARTS = 1 << 18

# Each order holds some 100 MiB at most.
_MAX_MIXTURES = 16


class JoinedDatasets:
    """Where the samples of several datasets lie, their ids and blocks laid end to end.

    Attributes:
        first_ids: ``(datasets + 1,) int64``: where the ids of each begin, and the last end.
        first_blocks: The same of their blocks.
        fingerprint: Of all of them together.
        raw_bytes: Bytes of all samples.
        stored_bytes: Bytes of all samples in the store.
    """

    def __init__(self, members: Sequence[ServedDataset], fingerprint: str) -> None:
        self._members = members
        datasets = [member.dataset for member in members]
        self.first_ids = _starts([dataset.sample_count for dataset in datasets])
        self.first_blocks = _starts([dataset.block_count for dataset in datasets])
        self.fingerprint = fingerprint
        self.raw_bytes = sum(dataset.raw_bytes for dataset in datasets)
        self.stored_bytes = sum(dataset.stored_bytes for dataset in datasets)
        self._starts: Starts | None = None
        self._unseen = set(np.flatnonzero(np.diff(self.first_ids)).tolist())

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each sample and its place in that block."""
        if self._starts is not None:
            return search(self._starts, sample_ids)
        blocks = np.empty(sample_ids.size, np.int64)
        offsets = np.empty(sample_ids.size, np.int64)
        for index, places, own in split_by(self.first_ids, sample_ids):
            found, offsets[places] = self._members[index].dataset.locate(own)
            blocks[places] = found + self.first_blocks[index]
            self._unseen.discard(index)
        if not self._unseen and self.first_blocks[-1] <= _MAX_STARTS:
            self._starts = self._found_starts()
        return blocks, offsets

    def _found_starts(self) -> Starts:
        """Return where all blocks begin, read from tables that are in memory by now."""
        starts = [
            member.dataset.block_first_samples(np.arange(member.dataset.block_count)) + first
            for member, first in zip(self._members, self.first_ids[:-1].tolist(), strict=True)
        ]
        return Starts(np.concatenate([*starts, self.first_ids[-1:]]))


class ServedMixture:
    """Several datasets as one.

    Args:
        members: The datasets; the same one may not come twice in a mixture.
        spec: Of their order; None if they are read from by id alone.
        skips: The samples that are left out of each; empty for none.

    Raises:
        BadArgumentError: The order cannot be.
    """

    name = "mixture"
    packed: Final = None
    samples_an_item: Final = 1

    def __init__(
        self,
        members: Sequence[ServedDataset],
        spec: MixtureSpec | None,
        skips: Sequence[Skips | None] = (),
    ) -> None:
        self.members = tuple(members)
        self._order: MixtureOrder | KeptMixtureOrder | None = None
        kept = [None if member.filter is None else member.filter.kept for member in members]
        if spec is not None:
            tables = [member.ordered for member in members]
            self._order = (
                MixtureOrder(spec, tables, skips=skips or None)
                if all(each is None for each in kept)
                else KeptMixtureOrder(spec, tables, kept, skips=skips or None)
            )
        self.dataset = JoinedDatasets(members, spec.fingerprint if spec else "")
        columns, refused = agreed_columns(
            [
                DatasetColumns(member.name, member.readable.columns, member.readable.refused)
                for member in members
            ]
        )
        self._layout = block_layout(columns)
        joined_count = int(self.dataset.first_ids[-1])
        self.readable = Readable(
            fingerprint=self.dataset.fingerprint,
            sample_count=self._order.sample_count if self._order else joined_count,
            columns=columns,
            refused=refused,
            max_batch_bytes=members[0].readable.max_batch_bytes,
            id_column=SAMPLE_PAIRS,
            mixture=spec.digest if spec else "",
            kept=joined_digest([member.readable.kept for member in members]),
        )

    @property
    def retirements(self) -> tuple[Retirement, ...]:
        """Return the retirement of each dataset."""
        return tuple(member.retirement for member in self.members)

    def check_global_batch_size(self, global_batch_size: int) -> None:
        """Refuse a global batch that does not fit how units are composed.

        Raises:
            BadArgumentError: It is one.
        """
        if self._order is not None:
            self._order.check_global_batch_size(global_batch_size)

    def skips(self, request: BatchesRequest, token: Token | None) -> Skips | None:
        """Return the samples that are left out, which the mixture was made with."""
        del request, token
        return None if self._order is None else self._order.skips

    def finder(self, spec: OrderSpec, skips: Skips | None) -> Finder:
        """Return what finds samples by their positions in the order, which has this spec."""
        assert self._order is not None
        assert self._order.skips is skips
        assert self._order.spec.order == spec
        memories = self._order.memory_samples.tolist()
        tables = [member.ordered for member in self.members]
        together = sum(
            lane_bytes(spec, count, table.sample_count, int(table.raw_bytes.sum()))
            for table, count in zip(tables, memories, strict=True)
        )
        if isinstance(self._order, KeptMixtureOrder):
            return KeptFinder(self._order, self.dataset, lane_bytes=together)
        return PlainFinder(self._order, self.dataset, lane_bytes=together)

    def dealer(self, deal: DealSpec, order: OrderSpec, ranks: Ranks, finder: Finder) -> Dealer:
        """Refuse: the samples of mixtures are dealt in order.

        Raises:
            BadArgumentError: Always.
        """
        del self, deal, order, ranks, finder
        raise BadArgumentError(
            "the samples of a mixture are dealt in order; leave deal out", field="deal"
        )

    def blocks(self, cache: BlockCache) -> Blocks:
        """Return the blocks of all datasets for a stream."""
        parts = [member.blocks(cache) for member in self.members]
        return JoinedBlocks(parts, self.dataset.first_blocks, self._layout)

    def describe(self, start: pb.StreamStart) -> None:
        """Name the datasets; their columns are those of the stream."""
        for member in self.members:
            described = member.to_proto()
            described.ClearField("columns")
            start.datasets.append(described)

    def parts(self, sample_ids: NDArray[np.int64]) -> Iterator[Part]:
        """Tell the samples of a batch apart by dataset."""
        for index, places, own in split_by(self.dataset.first_ids, sample_ids):
            yield Part(index, self.members[index], places, own)

    def shown_ids(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return pairs of a dataset's index and an id in it: ``(samples, 2) int64``."""
        firsts = self.dataset.first_ids
        owners = np.searchsorted(firsts, sample_ids, side="right") - 1
        pairs = np.empty((sample_ids.size, 2), np.int64)
        pairs[:, 0] = owners
        pairs[:, 1] = sample_ids - firsts[owners]
        return pairs

    def tally(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count samples by dataset: ``(datasets,) int64``."""
        owners = np.searchsorted(self.dataset.first_ids, sample_ids, side="right") - 1
        return np.bincount(owners, minlength=len(self.members))

    def joined_ids(
        self, indices: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return ids of the mixture for pairs of a dataset's index and an id in it.

        Raises:
            BadArgumentError: A pair names no sample.
        """
        count = len(self.members)
        wrong = np.flatnonzero((indices < 0) | (indices >= count))
        if wrong.size:
            raise BadArgumentError(
                f"dataset_indices has {indices[wrong[0]]}; they must be in [0, {count})",
                field="dataset_indices",
            )
        firsts = self.dataset.first_ids
        ends = firsts[indices + 1] - firsts[indices]
        wrong = np.flatnonzero((sample_ids < 0) | (sample_ids >= ends))
        if wrong.size:
            place = int(wrong[0])
            raise BadArgumentError(
                f"sample_ids has {sample_ids[place]} of {self.members[int(indices[place])].name!r};"
                f" its ids are in [0, {ends[place]})",
                field="sample_ids",
            )
        joined: NDArray[np.int64] = firsts[indices] + sample_ids
        return joined


class Mixtures:
    """The mixtures that streams read, so that the ranks of a job share one; thread-safe."""

    def __init__(self) -> None:
        self._mixtures: OrderedDict[tuple[object, ...], ServedMixture] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self,
        spec: MixtureSpec,
        members: Sequence[ServedDataset],
        skips: Sequence[Skips | None],
    ) -> ServedMixture:
        """Return the mixture of some datasets under a spec, without some of their samples.

        Raises:
            BadArgumentError: The order cannot be.
        """
        filters = tuple(member.readable.kept for member in members)
        key = (spec.fingerprint, spec.digest, spec.order, tuple(map(digest_of, skips)), filters)
        with self._lock:
            found = self._mixtures.get(key)
            # A dataset that was reloaded is another object.
            if found is None or found.members != tuple(members):
                found = self._mixtures[key] = ServedMixture(members, spec, skips)
            self._mixtures.move_to_end(key)
            if len(self._mixtures) > _MAX_MIXTURES:
                self._mixtures.popitem(last=False)
        return found


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
