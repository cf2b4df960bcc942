"""A dataset that a server serves, opened once and kept open."""

from __future__ import annotations

import copy
import functools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import (
    BadArgumentError,
    HeadraceError,
    NotADatasetError,
    RebalanceError,
    TokenDatasetChangedError,
)
from headrace.order import (
    Buckets,
    DealSpec,
    Kept,
    KeptOrder,
    Order,
    OrderSpec,
    ShardTable,
    Skips,
    Token,
    check_within,
    table_of,
)
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.disk.disk_blocks import DiskBlocks
from headrace.server.cache.fetch.block_runs import store_of
from headrace.server.cache.flat_blocks import FlatBlocks
from headrace.server.cache.read_observer import ReadObserver, WatchedBlocks
from headrace.server.cache.readers import DatasetBlocks
from headrace.server.datasets.class_messages import class_counts, class_messages
from headrace.server.datasets.served import Part
from headrace.server.datasets.served_rows import RowsOf
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import split_schema
from headrace.server.plan.compiled import Located, walk
from headrace.server.plan.dealing import Dealer, Dealers, Ranks, sample_costs
from headrace.server.plan.find_samples import Finder, Found
from headrace.server.plan.length_buckets import BucketFinder
from headrace.server.plan.plain_finder import KeptFinder, lane_bytes, step_finder
from headrace.server.plan.skip_lists import (
    Lists,
    list_message,
    read_skip_lists,
    wanted_skips,
)
from headrace.server.plan.stream_request import BatchesRequest, Readable
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.storage import OpenDataset, list_versions, open_dataset
from headrace.v1 import shard_service_pb2 as pb

_FINGERPRINT = re.compile("[0-9a-f]{32}")
# Each version keeps its shard table. Runs use few versions at once; the bound is arbitrary.
_MAX_VERSIONS = 64

_Served = TypeVar("_Served")


class Versions(Generic[_Served]):
    """Open the versions that tokens name, each once; safe for several threads.

    Open versions stay open until `close`, because streams read from them.

    Args:
        name: The dataset's name.
        current: The version that is served when none is named, and its fingerprint.
        open_version: Opens the version with a fingerprint.
        list_versions: Returns the fingerprints of all versions, newest last.
    """

    def __init__(
        self,
        name: str,
        current: tuple[str, _Served],
        *,
        open_version: Callable[[str], _Served],
        list_versions: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._name = name
        self._fingerprint, self._current = current
        self._open_version = open_version
        self._list_versions = list_versions
        self._older: dict[str, _Served] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def get(self, fingerprint: str) -> _Served:
        """Return one version; the current one if the fingerprint is empty.

        Raises:
            BadArgumentError: The fingerprint is invalid.
            TokenDatasetChangedError: The store does not have that version, or no longer.
            RebalanceError: The dataset is closed.
            HeadraceError: The version exists but cannot be opened.
        """
        if fingerprint in {"", self._fingerprint}:
            return self._current
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise BadArgumentError(
                f"fingerprint is {fingerprint[:100]!r}; it must be 32 lower-case hexadecimal "
                "digits, or empty",
                field="fingerprint",
            )
        # One at a time: a thousand ranks that reconnect after an append open it once.
        with self._lock:
            found = self._older.get(fingerprint)
            if found is None:
                if self._is_closed:
                    raise RebalanceError("this dataset was reopened here; reconnect to continue")
                self._check_room(fingerprint)
                found = self._older[fingerprint] = self._open(fingerprint)
        return found

    def candidates(self) -> tuple[str, ...]:
        """Return the fingerprints of all versions: the current one, then the others, newest first.

        Raises:
            HeadraceError: The store cannot be reached.
        """
        others = [each for each in self._list_versions() if each != self._fingerprint]
        return (self._fingerprint, *reversed(others))

    def close(self) -> tuple[_Served, ...]:
        """Open no more versions; return the older ones that are open, for the caller to close."""
        with self._lock:
            self._is_closed = True
            return tuple(self._older.values())

    def _open(self, fingerprint: str) -> _Served:
        try:
            return self._open_version(fingerprint)
        except NotADatasetError as error:
            raise self._gone(fingerprint, "its store does not have that version") from error

    def _check_room(self, fingerprint: str) -> None:
        if len(self._older) >= _MAX_VERSIONS:
            raise self._gone(
                fingerprint,
                f"this server already has {_MAX_VERSIONS} older versions open, its maximum",
            )

    def _gone(self, fingerprint: str, why: str) -> TokenDatasetChangedError:
        return TokenDatasetChangedError(
            f"a dataset with the fingerprint {fingerprint} is requested, but {self._name!r} has "
            f"{self._fingerprint}; {why}. If the token is of another dataset, read that one; else "
            "restore that version, serve it elsewhere (NAME=URL#FINGERPRINT), or start over",
            token_fingerprint=fingerprint,
            dataset_fingerprint=self._fingerprint,
        )


# The most open orders of a dataset, of at most about 50 MiB each. Jobs with equal seeds share one.
_MAX_ORDERS = 16


# The most filters of a dataset whose orders are kept open.
_MAX_FILTERED = 64


class Retirement:
    """Whether a dataset is still served.

    Attributes:
        why: Returns the error that says why it is no longer served; None while it is. Set once.
    """

    __slots__ = ("why",)

    def __init__(self) -> None:
        self.why: Callable[[], HeadraceError] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RowFilter:
    """The samples of a dataset's version that a filter keeps.

    Attributes:
        text: The expression in normal form.
        kept: The samples.
        table: The shard table of their order.
    """

    text: str
    kept: Kept
    table: ShardTable


class ServedDataset:
    """One dataset under its name.

    Attributes:
        name: The name under which it is served.
        dataset: The dataset.
        readable: What requests are checked against.
        source: Its blocks in the cache.
        table: The shard table of all its samples.
        filter: The filter of rows; None for all samples.
        skip_lists: The lists of samples to leave out that are stored for it, by digest.
        versions: Its other versions; None if they cannot be opened.
        packed: None: the items of its order are samples.
        samples_an_item: Always 1.
        config: The settings with which it was opened, if known.
        rows: Its documents, packed.
        dealers: The dealers of its samples to ranks.
        retirement: Whether it is still served, under this name and in any version.
    """

    packed: Final = None
    samples_an_item: Final = 1

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
        self.retirement = retirement or Retirement()
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
        self.source = cache.add_source(
            WatchedBlocks(
                name,
                FlatBlocks(
                    dataset if cache.disk is None else DiskBlocks(dataset, cache.disk),
                    item_nulls=item_nulls,
                ),
                observers,
            ),
            block_layout(columns),
            block_count=dataset.block_count,
            raw_bytes=dataset.raw_bytes,
            fingerprint=dataset.fingerprint,
            origin=None if config is None else (name, config, dataset.fingerprint),
            store=store_of(dataset.url),
        )
        self.table = table_of(dataset.stretches())
        self.filter: RowFilter | None = None
        self._filtered: OrderedDict[str, ServedDataset] = OrderedDict()
        self._finders: OrderedDict[tuple[OrderSpec, str, int], Finder] = OrderedDict()
        self._lock = threading.Lock()
        self.config = config
        self.rows = RowsOf(self)
        self.dealers = Dealers()
        self.versions: Versions[ServedDataset] | None = None

    @functools.cached_property
    def classes(self) -> list[pb.ColumnClasses]:
        """Return the class names of its label columns, as far as they fit into a response."""
        return class_messages(self.dataset.schema)

    def skips(self, request: BatchesRequest, token: Token | None) -> Skips | None:
        """Return the samples that a request skips.

        Raises:
            HeadraceError: See `wanted_skips`; or the list belongs to another dataset.
        """
        if not request.HasField("skips") and (token is None or not token.skips):
            return None
        skips = wanted_skips(request, token, self.skip_lists)
        check_within(skips, self.table.sample_count, dataset=self.name)
        return skips

    def filtered(self, found: RowFilter) -> ServedDataset:
        """Return the part that a filter keeps; streams with the same filter share the object."""
        with self._lock:
            view = self._filtered.get(found.kept.digest)
            if view is None:
                view = self._filtered[found.kept.digest] = copy.copy(self)
                view.filter, view._lock = found, threading.Lock()  # noqa: SLF001 - its own copy
                view._finders, view._filtered = OrderedDict(), OrderedDict()  # noqa: SLF001
                view.readable = replace(
                    self.readable, sample_count=found.kept.count, kept=found.kept.digest
                )
            self._filtered.move_to_end(found.kept.digest)
            if len(self._filtered) > _MAX_FILTERED:
                self._filtered.popitem(last=False)
        return view

    @property
    def ordered(self) -> ShardTable:
        """The shard table of the kept samples."""
        return self.table if self.filter is None else self.filter.table

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return the finder for the order of a spec; streams with equal specs share it."""
        return self._known_finder(spec, skips, 0, lambda: self._new_finder(spec, skips))

    def lengths_digest(self) -> str:
        """Return the digest of the lengths of its samples.

        Raises:
            BadArgumentError: No lengths are stored.
        """
        return self.rows.lengths(field="buckets").digest

    def bucket_finder(self, spec: OrderSpec, skips: Skips | None, buckets: int) -> Finder:
        """Return the finder for an order that is rearranged in length buckets.

        Raises:
            BadArgumentError: No lengths of samples are stored.
        """
        lengths = self.rows.lengths(field="buckets")
        ordered, unskipped = self.finder(spec, skips), self.finder(spec)

        def make() -> Finder:
            return BucketFinder(
                Buckets(
                    spec.seed, spec.shuffle, spec.lanes, spec.unit, ordered.sample_count, buckets
                ),
                ordered,
                unskipped,
                lengths=lengths.of_samples,
                sample_bytes=self.dataset.raw_bytes // max(1, self.dataset.sample_count),
            )

        return self._known_finder(spec, skips, buckets, make)

    def _known_finder(
        self, spec: OrderSpec, skips: Skips | None, buckets: int, make: Callable[[], Finder]
    ) -> Finder:
        key = (spec, "" if skips is None else skips.digest, buckets)
        with self._lock:
            finder = self._finders.get(key)
            if finder is None:
                finder = self._finders[key] = make()
            self._finders.move_to_end(key)
            if len(self._finders) > _MAX_ORDERS:
                self._finders.popitem(last=False)
        return finder

    def dealer(self, deal: DealSpec, order: OrderSpec, ranks: Ranks, finder: Finder) -> Dealer:
        """Return the dealer of samples to ranks with even costs; the ranks of a job share it.

        Raises:
            BadArgumentError: No lengths of samples are stored.
        """
        lengths = self.rows.lengths(field="deal")

        def costs(found: Found) -> NDArray[np.float64]:
            return sample_costs(lengths.of_samples(found.sample_ids), deal)

        return self.dealers.get(
            (deal, order, ranks, id(finder)),
            lambda: Dealer(deal, order, ranks, finder=finder, costs=costs),
        )

    def _new_finder(self, spec: OrderSpec, skips: Skips | None) -> Finder:
        if self.filter is None:
            return step_finder(Order(spec, self.table, skips=skips, walk=walk), self.dataset)
        kept, table = self.filter.kept, self.filter.table
        order = KeptOrder(spec, table, kept, skips=skips, walk=walk)
        return KeptFinder(
            order,
            Located(self.dataset),
            lane_bytes=lane_bytes(
                spec, order.memory_samples, kept.count, int(table.raw_bytes.sum())
            ),
        )

    def version(self, fingerprint: str) -> ServedDataset:
        """Return the version with a fingerprint; this one if it is empty.

        Raises:
            HeadraceError: See `Versions.get`.
        """
        return self if self.versions is None else self.versions.get(fingerprint)

    def blocks(self, cache: BlockCache) -> DatasetBlocks:
        """Return its blocks for a stream."""
        return DatasetBlocks(cache, self.source, self.dataset)

    def dispose(self, cache: BlockCache) -> None:
        """Release its blocks and close its stores, for all versions, after the last stream."""
        for one in (self, *(self.versions.close() if self.versions else ())):
            cache.remove_source(one.source)
            one.rows.close()
            one.dataset.close()

    @property
    def retirements(self) -> tuple[Retirement, ...]:
        """Return the retirements of everything that a stream of it reads."""
        return (self.retirement,)

    def describe(self, start: pb.StreamStart) -> None:
        """Describe the dataset in the first message of a stream."""
        start.dataset.CopyFrom(self.to_proto())

    def parts(self, sample_ids: NDArray[np.int64]) -> Iterator[Part]:
        """Yield the samples of a batch as a single part."""
        yield Part(0, self, np.arange(sample_ids.size), sample_ids)

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
            skip_lists=filter(None, map(list_message, self.skip_lists.values())),
            filter=self._filter_message(),
        )

    def _filter_message(self) -> pb.Filter | None:
        if self.filter is None:
            return None
        kept = self.filter.kept
        return pb.Filter(where=self.filter.text, digest=kept.digest, sample_count=kept.count)


def open_served(
    name: str,
    config: DatasetConfig,
    *,
    cache: BlockCache,
    max_batch_bytes: int,
    observers: Sequence[ReadObserver] = (),
) -> ServedDataset:
    """Open one dataset.

    Args:
        name: The name to serve it under.
        config: Where it is, and how to read it.
        cache: The cache for its blocks.
        max_batch_bytes: The largest payload of one batch.
        observers: Receive reports of each read.

    Raises:
        HeadraceError: It cannot be opened; see `headrace.storage.open_dataset`.
    """
    retirement = Retirement()
    skip_lists = read_skip_lists(config.skips)

    def open_version(fingerprint: str | None) -> ServedDataset:
        with ExitStack() as opened:
            dataset = open_one(config, fingerprint)
            opened.callback(dataset.close)
            served = ServedDataset(
                name,
                dataset,
                cache=cache,
                max_batch_bytes=max_batch_bytes,
                retirement=retirement,
                skip_lists=skip_lists,
                observers=observers,
                config=config,
            )
            opened.pop_all()
        return served

    served = open_version(None)
    current = (served.dataset.fingerprint, served)
    url, _ = config.place
    served.versions = Versions(
        name,
        current,
        open_version=open_version,
        list_versions=lambda: [
            each.fingerprint for each in list_versions(url, options=config.store)
        ],
    )
    return served


def open_one(config: DatasetConfig, fingerprint: str | None = None) -> OpenDataset:
    """Open a dataset according to its settings, in their version or another one.

    Raises:
        HeadraceError: See `headrace.storage.open_dataset`.
    """
    url, pinned = config.place
    return open_dataset(
        url, options=config.store, fingerprint=fingerprint or pinned, source_options=config.source
    )
