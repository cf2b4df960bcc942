"""Serve the documents of a dataset, packed into rows, as a dataset whose samples are rows.

Contract:

1. ``NAME:LENGTH`` is the dataset NAME, packed into rows of LENGTH elements. It is served as soon as
   the lengths and row counts are stored, to callers who may read NAME.
2. Its fingerprint names the version of the dataset, the options of packing, the lengths and the
   row counts: equal fingerprints are equal rows, and tokens hold it.
3. A token of rows of an earlier version opens that version, as with any dataset.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, DatasetNotFoundError, TokenDatasetChangedError
from headrace.order import DealSpec, Order, OrderSpec, Skips, Token
from headrace.order.packing import PackedRows, Packing
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.source import Blocks
from headrace.server.datasets.served import Part
from headrace.server.layout.packed_columns import packed_columns
from headrace.server.plan.dealing import Dealer, Dealers, Ranks, dealer_of_rows
from headrace.server.plan.find_samples import Finder, fit, take, walk
from headrace.server.plan.packed_rows import PackedFinder
from headrace.server.plan.stream_request import BatchesRequest, Readable
from headrace.storage import (
    OpenDataset,
    PackingPointer,
    RowTable,
    Store,
    StoredLengths,
    open_store,
    read_packing,
    read_row_counts,
)
from headrace.v1 import shard_service_pb2 as pb

if TYPE_CHECKING:
    from headrace.server.datasets.served_dataset import Retirement, ServedDataset

_DIGEST_BYTES = 16
# Orders of one length kept open; jobs that share a seed share one.
_MAX_ORDERS = 16


class ServedRows:
    """The rows of a dataset for one length.

    Args:
        base: The dataset.
        pointer: What is stored for packing it.
        table: The row counts of the length.
        store: Where both lie.

    Attributes:
        name: Under which they are served.
        readable: What requests are checked against.
        packed: What rows hold.
        samples_an_item: About how many documents a row has.
        rows: How documents make them.
        table: What their order is made of.

    Raises:
        BadArgumentError: The columns are not what can be packed.
        ManifestCorruptError: What is stored is damaged.
    """

    def __init__(
        self, base: ServedDataset, pointer: PackingPointer, table: RowTable, store: Store
    ) -> None:
        options = table.options
        self.name: Final = f"{base.name}:{options.length}"
        self._base = base
        lengths = StoredLengths(store, pointer)
        groups = lengths.groups
        self.packed: Final = packed_columns(
            base.readable.columns,
            (pointer.column, *pointer.alike),
            length=options.length,
            bos=options.bos,
            eos=options.eos,
            fill=options.fill,
            tokenizer=pointer.tokenizer,
        )
        self.rows: Final = PackedRows(
            Packing(options.length, options.cut, options.marks),
            document_counts=groups["sample_count"].astype(np.int64),
            row_counts=read_row_counts(store, table, group_count=len(groups)),
            raw_bytes=groups["raw_bytes"].astype(np.int64),
            lengths=lengths.of_group,
            fit=fit,
            take=take,
        )
        self.table: Final = self.rows.table
        self.samples_an_item: Final = max(1, pointer.sample_count // max(1, self.rows.row_count))
        self.readable: Final = Readable(
            fingerprint=rows_fingerprint(pointer, table),
            sample_count=self.rows.row_count,
            columns=self.packed.columns,
            refused={},
            max_batch_bytes=base.readable.max_batch_bytes,
        )
        self._finders: OrderedDict[tuple[OrderSpec, str], PackedFinder] = OrderedDict()
        self._lock = threading.Lock()
        self.dealers: Final = Dealers()

    @property
    def base(self) -> ServedDataset:
        """Return the dataset of the documents."""
        return self._base

    @property
    def dataset(self) -> OpenDataset:
        """Return the places of the documents."""
        return self._base.dataset

    @property
    def classes(self) -> list[pb.ColumnClasses]:
        """Return nothing: documents have no labels."""
        return []

    @property
    def retirements(self) -> tuple[Retirement, ...]:
        """Return the retirement of all that a stream of it reads."""
        return self._base.retirements

    def skips(self, request: BatchesRequest, token: Token | None) -> Skips | None:
        """Return the documents that a request leaves out.

        Raises:
            HeadraceError: As for the dataset.
        """
        return self._base.skips(request, token)

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> PackedFinder:
        """Return what finds rows in the order of a spec; streams with equal specs share it."""
        key = (spec, "" if skips is None else skips.digest)
        with self._lock:
            finder = self._finders.get(key)
            if finder is None:
                finder = self._finders[key] = PackedFinder(
                    Order(spec, self.table, walk=walk),
                    self.rows,
                    self._base.dataset,
                    fingerprint=self.readable.fingerprint,
                    skips=skips,
                )
            self._finders.move_to_end(key)
            if len(self._finders) > _MAX_ORDERS:
                self._finders.popitem(last=False)
        return finder

    def lengths_digest(self) -> str:
        """Refuse, since all rows have the same length.

        Raises:
            BadArgumentError: Always.
        """
        raise BadArgumentError(
            f"all rows of {self.name!r} have {self.packed.length} elements, but buckets sort "
            f"samples by length; leave buckets out, or ask for {self._base.name!r}",
            field="buckets",
        )

    def dealer(self, deal: DealSpec, order: OrderSpec, ranks: Ranks, finder: Finder) -> Dealer:
        """Return what deals rows to ranks so that costs are even; the ranks of a job share it."""
        return dealer_of_rows(self.dealers, deal, order, ranks, finder)

    def blocks(self, cache: BlockCache) -> Blocks:
        """Return the blocks of the documents for a stream."""
        return self._base.blocks(cache)

    def describe(self, start: pb.StreamStart) -> None:
        """Describe the rows in the first message of a stream."""
        start.dataset.CopyFrom(self.to_proto())

    def parts(self, sample_ids: NDArray[np.int64]) -> Iterator[Part]:
        """Give the documents of a batch back as they are."""
        yield from self._base.parts(sample_ids)

    def shown_ids(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids of rows as they are."""
        return sample_ids

    def shown_samples(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids of documents as they are."""
        return sample_ids

    def joined_ids(
        self, indices: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return ids of documents as they are.

        Raises:
            BadArgumentError: One is outside of the dataset.
        """
        return self._base.joined_ids(indices, sample_ids)

    def tally(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return nothing: there are no datasets to tell apart."""
        return sample_ids[:0]

    def version(self, fingerprint: str) -> ServedRows:
        """Return the rows of a fingerprint; these if it is empty.

        Raises:
            TokenDatasetChangedError: No version of the dataset that the store has, has them.
        """
        if fingerprint in {"", self.readable.fingerprint}:
            return self
        for version, candidate in self._base.rows.versions(self.packed.length):
            if candidate == fingerprint and version != self._base.dataset.fingerprint:
                return self._base.version(version).rows.get(self.packed.length)
        raise TokenDatasetChangedError(
            f"rows with the fingerprint {fingerprint[:100]} are requested, but {self.name!r} has "
            f"{self.readable.fingerprint}; the dataset, its lengths or the packing options have "
            "changed since: restore them, or start over",
            token_fingerprint=fingerprint[:100],
            dataset_fingerprint=self.readable.fingerprint,
        )

    def candidates(self) -> tuple[str, ...]:
        """Return the fingerprints of the rows of all versions, these first.

        Raises:
            HeadraceError: The store cannot be asked.
        """
        own = self.readable.fingerprint
        found = [candidate for _, candidate in self._base.rows.versions(self.packed.length)]
        return (own, *(each for each in found if each != own))

    def to_proto(self) -> pb.Dataset:
        """Return the rows as the wire describes a dataset."""
        described = self._base.to_proto()
        described.name = self.name
        described.fingerprint = self.readable.fingerprint
        described.sample_count = self.readable.sample_count
        described.document_count = self.base.dataset.sample_count
        described.ClearField("columns")
        described.columns.extend(column.to_proto() for column in self.readable.columns)
        return described


class RowsOf:
    """The rows of a dataset by their length, each opened once. Safe for several threads.

    Args:
        base: The dataset.
    """

    def __init__(self, base: ServedDataset) -> None:
        self._base = base
        self._lock = threading.Lock()
        self._lengths: StoredLengths | None = None
        self._open: dict[int, ServedRows] = {}

    @functools.cached_property
    def _store(self) -> Store | None:
        config = self._base.config
        return None if config is None else open_store(config.place[0], options=config.store)

    def get(self, length: int) -> ServedRows:
        """Return the rows of a length.

        Raises:
            DatasetNotFoundError: What packing needs is not stored for it; names what is.
            HeadraceError: It is, and cannot be read.
        """
        found = self.find(length)
        if found is None:
            pointer = self._pointer()
            lengths = [] if pointer is None else [each.options.length for each in pointer.rows]
            known = f"lengths {', '.join(map(str, lengths))} are" if lengths else "no length is"
            raise DatasetNotFoundError(
                f"{known} stored for packing {self._base.name!r}; store {length} with `headrace "
                f"index URL --pack-length {length}`",
                dataset=f"{self._base.name}:{length}",
            )
        return found

    def find(self, length: int) -> ServedRows | None:
        """Return the rows of a length; None if what packing needs is not stored for it.

        Raises:
            HeadraceError: It is, and cannot be read.
        """
        with self._lock:
            found = self._open.get(length)
            if found is None:
                pointer = self._pointer()
                tables = () if pointer is None else pointer.rows
                for table in tables:
                    if table.options.length == length:
                        assert pointer is not None
                        assert self._store is not None
                        found = ServedRows(self._base, pointer, table, self._store)
                        self._open[length] = found
        return found

    def versions(self, length: int) -> Iterator[tuple[str, str]]:
        """Yield the versions that have rows of a length, and the fingerprints of these rows.

        Raises:
            HeadraceError: The store cannot be asked.
        """
        versions = self._base.versions
        if versions is None or self._store is None:
            return
        for version in versions.candidates():
            pointer = read_packing(self._store, version)
            for table in () if pointer is None else pointer.rows:
                if pointer is not None and table.options.length == length:
                    yield version, rows_fingerprint(pointer, table)

    def lengths(self, *, field: str) -> StoredLengths:
        """Return the lengths of the dataset's samples.

        Args:
            field: What needs them, for the error.

        Raises:
            BadArgumentError: None are stored.
            HeadraceError: They cannot be read.
        """
        with self._lock:
            if self._lengths is None:
                pointer = self._pointer()
                if pointer is None or self._store is None:
                    raise BadArgumentError(
                        f"no lengths are stored for {self._base.name!r}, which {field} needs; "
                        "store them with `headrace index URL --pack-length L`, with any L",
                        field=field,
                    )
                self._lengths = StoredLengths(self._store, pointer)
            return self._lengths

    def close(self) -> None:
        """Close the connections to the store."""
        if "_store" in self.__dict__ and self._store is not None:
            self._store.close()

    def _pointer(self) -> PackingPointer | None:
        if self._store is None:
            return None
        return read_packing(self._store, self._base.dataset.fingerprint)


def rows_fingerprint(pointer: PackingPointer, table: RowTable) -> str:
    """Return the fingerprint of the rows of a length: BLAKE2b-128 of all that determines them."""
    options = table.options
    lines = [
        pointer.dataset,
        " ".join(map(str, (options.length, options.cut, options.bos, options.eos, options.fill))),
        pointer.lengths.digest,
        pointer.groups.digest,
        table.counts.digest,
        pointer.column,
        *pointer.alike,
        *([f"tokenizer {pointer.tokenizer}"] if pointer.tokenizer else []),
    ]
    content = "".join(f"{line}\n" for line in lines).encode()
    hashed = hashlib.blake2b(content, digest_size=_DIGEST_BYTES, person=b"headrace-rows")
    return hashed.hexdigest()


def split_name(name: str) -> tuple[str, int] | None:
    """Return the dataset's name and the length of rows, if a name has both."""
    base, _, length = name.rpartition(":")
    if not base or not length.isascii() or not length.isdecimal() or len(length) > _MOST_DIGITS:
        return None
    return base, int(length)


_MOST_DIGITS = 7


def refuse_by_id(served: object) -> None:
    """Refuse to read rows by id, since they differ from epoch to epoch.

    Raises:
        BadArgumentError: Rows are requested.
    """
    if isinstance(served, ServedRows):
        raise BadArgumentError(
            f"the rows of {served.name!r} differ from epoch to epoch, so they have no ids; ask "
            f"{served.base.name!r} for its documents",
            field="dataset",
        )
