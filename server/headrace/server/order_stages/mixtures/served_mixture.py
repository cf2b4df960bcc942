"""A mixture of several datasets, or several datasets read by id."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import (
    MixtureOrder,
    MixtureSpec,
    OrderSpec,
    ShardTable,
    Skips,
    SubsetMixtureOrder,
    joined_digest,
    mixture_order_of,
    stages_of,
)
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.joined_sources import split_by
from headrace.server.cache.readers import WholeBlocks
from headrace.server.datasets.class_messages import class_counts
from headrace.server.datasets.member import Member
from headrace.server.datasets.narrowed_dataset import NarrowedDataset
from headrace.server.datasets.served import Part
from headrace.server.datasets.served_dataset import Samples
from headrace.server.datasets.versions import Retirement
from headrace.server.layout.block_layout import block_layout
from headrace.server.order_stages.mixtures.common_columns import (
    SAMPLE_PAIRS,
    DatasetColumns,
    agreed_columns,
)
from headrace.server.order_stages.mixtures.joined_datasets import JoinedDatasets
from headrace.server.order_stages.mixtures.mixture_blocks import JoinedBlocks
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.job_windows import JobWindows
from headrace.server.plan.plain_finder import PlainFinder, table_bytes
from headrace.server.plan.skip_lists import Lists, digest_of, list_message
from headrace.server.plan.stream_request import Readable
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.skips_pb2 import Skip
from headrace.v1.stages import packed


def id_pairs(first_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs of a dataset's index and an id in it, ``(n, 2) int64``, for ids laid end to end.

    Args:
        first_ids: ``(datasets + 1,) int64``: the first id of each dataset, and the end.
        ids: ``(n,) int64``: the ids.
    """
    owners = np.searchsorted(first_ids, ids, side="right") - 1
    pairs = np.empty((ids.size, 2), np.int64)
    pairs[:, 0] = owners
    pairs[:, 1] = ids - first_ids[owners]
    return pairs


def dataset_counts(first_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of the ids each dataset has, ``(datasets,) int64``; see `id_pairs`."""
    owners = np.searchsorted(first_ids, ids, side="right") - 1
    return np.bincount(owners, minlength=first_ids.size - 1)


def add_datasets(start: pb.StreamStart, members: Iterable[pb.Dataset], skips: Skips | None) -> None:
    """Add the members of a mixture to a stream's first message; the stream has their columns.

    Args:
        start: The message.
        members: The members.
        skips: What is left out of all of them.
    """
    for described in members:
        described.ClearField("columns")
        start.datasets.append(described)
    if skips is not None:
        start.stages.append(packed(Skip(list=list_message(skips))))


def drawn_bytes(order: MixtureOrder | SubsetMixtureOrder, tables: Sequence[ShardTable]) -> int:
    """Return the raw bytes of what an epoch draws from datasets, approximately."""
    sizes = [int(table.raw_bytes.sum()) / max(1, table.sample_count) for table in tables]
    return int(order.sample_count * float(order.shares @ np.array(sizes)))


def no_lengths(field: str) -> BadArgumentError:
    """Return the refusal of lengths of samples for a mixture."""
    return BadArgumentError(
        f"{field} needs the lengths of the samples of one dataset, but a mixture is requested; "
        f"leave {field} out, or read one dataset",
        field=field,
    )


class ServedMixture(Samples):
    """Several datasets served as one.

    Args:
        members: The datasets; a mixture may contain each only once.
        spec: The order; None if they are only read by id.
        skips: The samples to skip in each; empty for none.

    Raises:
        BadArgumentError: The order is not possible.
    """

    name = "mixture"
    skip_lists: Final[Lists] = MappingProxyType({})

    def __init__(
        self,
        members: Sequence[Member],
        spec: MixtureSpec | None,
        skips: Sequence[Skips | None] = (),
    ) -> None:
        self.members = tuple(members)
        self._order: MixtureOrder | SubsetMixtureOrder | None = None
        self._bases = [member.base for member in members]
        narrowed = [member.stage(NarrowedDataset) for member in members]
        kept = [None if each is None else each.kept for each in narrowed]
        self._tables = [
            base.table if each is None else each.table
            for base, each in zip(self._bases, narrowed, strict=True)
        ]
        if spec is not None:
            self._order = mixture_order_of(spec, self._tables, kept, skips=skips or None)
        self.dataset = JoinedDatasets(
            [base.dataset for base in self._bases], spec.fingerprint if spec else ""
        )
        columns, refused = agreed_columns(
            [
                DatasetColumns(member.name, member.readable.columns, member.readable.refused)
                for member in members
            ]
        )
        self._layout = block_layout(columns)
        self.memory_bytes = sum(member.memory_bytes for member in members)
        joined_count = int(self.dataset.first_ids[-1])
        self.readable = Readable(
            fingerprint=self.dataset.fingerprint,
            sample_count=self._order.sample_count if self._order else joined_count,
            columns=columns,
            refused=refused,
            max_batch_bytes=members[0].readable.max_batch_bytes,
            id_column=SAMPLE_PAIRS,
            stages=stages_of(
                mixture=spec.digest if spec else "",
                filter=joined_digest(["" if each is None else each.digest for each in kept]),
                skips=digest_of(self._order.skips if self._order else None),
            ),
            class_counts=class_counts([member.classes for member in members]),
        )

    @property
    def retirements(self) -> tuple[Retirement, ...]:
        """Return the retirement of each dataset."""
        return tuple(base.retirement for base in self._bases)

    def check_global_batch_size(self, global_batch_size: int) -> None:
        """Refuse a global batch that does not fit how units are composed.

        Raises:
            BadArgumentError: It does not fit.
        """
        if self._order is not None:
            self._order.check_global_batch_size(global_batch_size)

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return the finder for the order, which has this spec."""
        assert self._order is not None
        assert self._order.spec.order == spec
        assert skips is None
        return self._finder

    def unskipped_finder(self, spec: OrderSpec) -> Finder:
        """Return the finder for the order, which leaves nothing out."""
        assert self._order is not None
        assert self._order.skips is None
        return self.finder(spec)

    @functools.cached_property
    def _finder(self) -> Finder:
        assert self._order is not None
        samples = self._order.memory_samples.tolist()
        together = sum(map(partial(table_bytes, self._order.spec.order), self._tables, samples))
        return PlainFinder(self._order, self.dataset, lane_bytes=together)

    @functools.cached_property
    def windows(self) -> JobWindows:
        """The windows of all datasets."""
        wholes = [base.source for base in self._bases]
        return JobWindows(self._bases[0].cache, wholes, self.dataset.first_blocks)

    @property
    def raw_bytes(self) -> int:
        """The raw bytes of the kept samples of all datasets."""
        return sum(member.raw_bytes for member in self.members)

    @functools.cached_property
    def epoch_bytes(self) -> int:
        """The raw bytes of what an epoch draws."""
        assert self._order is not None
        return drawn_bytes(self._order, self._tables)

    def lengths(self, *, field: str, cost: str = "") -> NoReturn:
        """Refuse, because lengths are those of a single dataset.

        Raises:
            BadArgumentError: Always.
        """
        del cost
        raise no_lengths(field)

    def blocks(self, cache: BlockCache) -> WholeBlocks:
        """Return the blocks of all datasets for a stream."""
        parts = [base.blocks(cache) for base in self._bases]
        return JoinedBlocks(parts, self.dataset.first_blocks, self._layout)

    def describe(self, start: pb.StreamStart) -> None:
        """Name the datasets; their columns are those of the stream."""
        skips = self._order.skips if self._order else None
        add_datasets(start, (member.to_proto() for member in self.members), skips)

    def parts(self, sample_ids: NDArray[np.int64]) -> Iterator[Part]:
        """Split the samples of a batch by dataset."""
        for index, places, own in split_by(self.dataset.first_ids, sample_ids):
            base = self._bases[index]
            yield Part(index, base.dataset, base.source, places, own)

    def shown_ids(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return pairs of a dataset's index and an id in it: ``(samples, 2) int64``."""
        return id_pairs(self.dataset.first_ids, sample_ids)

    def shown_samples(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same as `shown_ids`."""
        return self.shown_ids(sample_ids)

    def tally(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count samples by dataset: ``(datasets,) int64``."""
        return dataset_counts(self.dataset.first_ids, sample_ids)

    def joined_ids(
        self, indices: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return ids of the mixture for pairs of a dataset's index and an id in it.

        Raises:
            BadArgumentError: There is no sample for a pair.
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
