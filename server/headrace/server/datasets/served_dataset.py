"""A dataset that a server serves, opened once and kept open."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.caches import LruCache
from headrace.errors import BadArgumentError
from headrace.order import MixtureSpec, Order, OrderSpec, ShardTable, Skips, table_of
from headrace.server.batch.batch_writer import BatchWriter
from headrace.server.batch.compiled_writer import sample_writer
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.read_observer import ReadObserver
from headrace.server.cache.readers import DatasetBlocks
from headrace.server.datasets.cached_blocks import add_blocks, memory_bytes_of
from headrace.server.datasets.class_messages import class_counts, class_messages
from headrace.server.datasets.served import MOST_LOOKED_UP, Part, Served
from headrace.server.datasets.stored_lengths import LengthTables
from headrace.server.datasets.versions import Retirement, Versions
from headrace.server.layout.block_layout import BlockLayout, block_layout
from headrace.server.layout.wire_columns import WireColumn, split_schema
from headrace.server.plan.compiled import walk
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.job_windows import JobWindows
from headrace.server.plan.plain_finder import step_finder
from headrace.server.plan.ranks import Ranks
from headrace.server.plan.skip_lists import Lists, list_message
from headrace.server.plan.stream_request import Readable
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.storage import OpenDataset, StoredLengths
from headrace.v1 import shard_service_pb2 as pb

_Stage = TypeVar("_Stage")

# The most open orders of a dataset, of at most about 50 MiB each. Jobs with equal seeds share one.
MAX_ORDERS = 16


# What stages keep of a dataset, and its orders, that stay open.
_MAX_NARROWED = 64


class LoneSamples(ABC):
    """Samples of one dataset, which an epoch reads once each.

    Attributes:
        table: The shard table of their order.
    """

    table: ShardTable

    def _share_finders(self) -> None:
        """Keep finders from now on."""
        self._finding = threading.Lock()
        self._finder = lru_cache(MAX_ORDERS)(self._new_finder)

    @abstractmethod
    def _new_finder(self, spec: OrderSpec, skips: Skips | None) -> Finder:
        """Return a finder for the order of a spec."""

    @abstractmethod
    def to_proto(self) -> pb.Dataset:
        """Return the wire's description of the dataset."""

    @property
    def raw_bytes(self) -> int:
        """The raw bytes of the samples."""
        return int(self.table.raw_bytes.sum())

    @property
    def epoch_bytes(self) -> int:
        """The same, because an epoch reads each of them once."""
        return self.raw_bytes

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return the finder for the order of a spec; streams with equal specs share it."""
        with self._finding:
            return self._finder(spec, skips)

    def unskipped_finder(self, spec: OrderSpec) -> Finder:
        """Return the finder for the order of a spec."""
        return self.finder(spec)

    def mixed(
        self, members: Sequence[Served], spec: MixtureSpec, skips: Sequence[Skips | None]
    ) -> None:
        """Return None: a mixture of datasets is one of samples."""
        del members, spec, skips

    def describe(self, start: pb.StreamStart) -> None:
        """Describe the dataset in the first message of a stream."""
        start.dataset.CopyFrom(self.to_proto())


class Samples:
    """Samples as they are stored, behind no stage of the order.

    Attributes:
        samples_an_item: Always 1.
        has_pieces: Always False.
        most_looked_up: See `Served`.
    """

    samples_an_item: Final = 1
    has_pieces: Final = False
    most_looked_up: Final = MOST_LOOKED_UP

    def stage(self, kind: type[_Stage]) -> _Stage | None:
        """Return None: it stands behind no stage."""
        del kind
        return None

    def dealing(self, order: OrderSpec, ranks: Ranks, finder: Finder) -> None:
        """Return None: samples are dealt in order."""

    def writer(self, columns: Sequence[WireColumn]) -> Callable[[BlockLayout], BatchWriter]:
        """Return what writes batches with these columns, of blocks of a layout."""
        return sample_writer(columns)


class ServedDataset(Samples, LoneSamples):
    """One dataset under its name.

    Attributes:
        name: The name under which it is served.
        dataset: The dataset.
        readable: What requests are checked against.
        memory_bytes: Bytes in memory of all its blocks, approximately.
        cache: The cache of its blocks.
        source: Its blocks in the cache.
        windows: Its windows of pieces.
        table: The shard table of all its samples.
        narrowed: What stages keep of it, for the streams that share it.
        skip_lists: The lists of samples to leave out that are stored for it, by digest.
        versions: Its other versions; None if they cannot be opened.
        config: The settings with which it was opened, if known.
        tables: The lengths of its samples.
        retirement: Whether it is still served, under this name and in any version.
    """

    def __init__(
        self,
        name: str,
        dataset: OpenDataset,
        *,
        cache: BlockCache,
        max_batch_bytes: int,
        retirement: Retirement | None = None,
        skip_lists: Lists = MappingProxyType({}),
        observers: Sequence[ReadObserver] = (),
        config: DatasetConfig | None = None,
    ) -> None:
        self.name = name
        self.skip_lists = skip_lists
        self.retirement = retirement or Retirement(name)
        self.dataset = dataset
        item_nulls = config is not None and bool(config.item_nulls)
        columns, refused = split_schema(dataset.schema, item_nulls=item_nulls)
        self.readable = Readable(
            fingerprint=dataset.fingerprint,
            sample_count=dataset.sample_count,
            columns=columns,
            refused=refused,
            max_batch_bytes=max_batch_bytes,
            class_counts=class_counts([class_messages(dataset.schema)]),
        )
        layout = block_layout(columns)
        self.memory_bytes = memory_bytes_of(dataset, layout)
        self.cache = cache
        self.source = add_blocks(cache, name, dataset, layout, config=config, observers=observers)
        self.windows = JobWindows(cache, [self.source], np.array([0, dataset.block_count]))
        self.table = table_of(dataset.stretches())
        self.narrowed: LruCache[Hashable, Served] = LruCache(_MAX_NARROWED)
        self._share_finders()
        self.config = config
        self.tables = LengthTables(name, dataset.fingerprint, config)
        self.versions: Versions[ServedDataset] | None = None

    @cached_property
    def classes(self) -> list[pb.ColumnClasses]:
        """Return the class names of its label columns, as far as they fit into a response."""
        return class_messages(self.dataset.schema)

    def lengths(self, *, field: str, cost: str = "") -> StoredLengths:
        """Return the lengths of its samples, or their costs.

        Raises:
            BadArgumentError: They are not stored.
        """
        return self.tables.lengths(field=field, cost=cost)

    def _new_finder(self, spec: OrderSpec, skips: Skips | None) -> Finder:
        return step_finder(Order(spec, self.table, skips=skips, walk=walk), self.dataset)

    @property
    def base(self) -> ServedDataset:
        """Return the dataset itself, whose samples these are."""
        return self

    def version(self, fingerprint: str) -> ServedDataset:
        """Return the version with a fingerprint; this one if it is empty.

        Raises:
            HeadraceError: See `Versions.get`.
        """
        if self.versions is None or fingerprint in {"", self.dataset.fingerprint}:
            return self
        return self.versions.get(fingerprint)

    def blocks(self, cache: BlockCache) -> DatasetBlocks:
        """Return its blocks."""
        return DatasetBlocks(cache, self.source, self.dataset)

    def dispose(self, cache: BlockCache) -> None:
        """Release its blocks and close its stores, for all versions, after the last stream."""
        for one in (self, *(self.versions.close() if self.versions else ())):
            cache.remove_source(one.source)
            one.tables.close()
            one.dataset.close()

    @property
    def retirements(self) -> tuple[Retirement, ...]:
        """Return the retirements of everything that a stream of it reads."""
        return (self.retirement,)

    def parts(self, sample_ids: NDArray[np.int64]) -> Iterator[Part]:
        """Yield the samples of a batch as a single part."""
        yield Part(0, self.dataset, self.source, np.arange(sample_ids.size), sample_ids)

    def shown_ids(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample ids unchanged."""
        return sample_ids

    def shown_samples(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample ids unchanged."""
        return sample_ids

    def candidates(self) -> tuple[str, ...]:
        """Return the fingerprints of all versions, this one first if there are others.

        Raises:
            HeadraceError: The store cannot be reached.
        """
        own = self.dataset.fingerprint
        return (own,) if self.versions is None else self.versions.candidates()

    def joined_ids(
        self, indices: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the sample ids unchanged.

        Raises:
            BadArgumentError: An id is outside the dataset.
        """
        assert not indices.size
        count = self.dataset.sample_count
        outside = sample_ids[(sample_ids < 0) | (sample_ids >= count)]
        if outside.size:
            raise BadArgumentError(
                f"sample_ids has {outside[0]}; ids must be in [0, {count})", field="sample_ids"
            )
        return sample_ids

    def tally(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return an empty array, because there is only one dataset."""
        return sample_ids[:0]

    def to_proto(self) -> pb.Dataset:
        """Return the wire's description of the dataset."""
        return pb.Dataset(
            name=self.name,
            fingerprint=self.dataset.fingerprint,
            sample_count=self.dataset.sample_count,
            shard_count=self.dataset.shard_count,
            raw_bytes=self.dataset.raw_bytes,
            stored_bytes=self.dataset.stored_bytes,
            columns=[column.to_proto() for column in self.readable.columns],
            skip_lists=map(list_message, self.skip_lists.values()),
        )
