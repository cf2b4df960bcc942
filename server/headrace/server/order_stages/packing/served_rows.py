"""Serve the documents of a dataset, packed into rows, as a dataset whose samples are rows.

Contract:

1. ``NAME:LENGTH`` is the dataset NAME, packed into rows of LENGTH elements. It is served as soon as
   the lengths and row counts are stored, to callers who may read NAME.
2. Its fingerprint depends on the version of the dataset, the options of packing, the lengths and
   the row counts, so equal fingerprints mean equal rows. Tokens hold it.
3. A token of rows of an earlier version opens that version, as with any dataset.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, NoReturn

import numpy as np

from headrace.caches import LruCache
from headrace.errors import BadArgumentError, DatasetNotFoundError, TokenDatasetChangedError
from headrace.order import MixtureSpec, Order, OrderSpec, Skips
from headrace.order.packing import PackedRows, Packing, packing_key
from headrace.order.samples.shard_table import ShardTable
from headrace.server.batch.batch_writer import BatchWriter
from headrace.server.batch.compiled_rows import rows_writer
from headrace.server.datasets.member import Member
from headrace.server.datasets.order_stage import OrderStage
from headrace.server.datasets.served import Mixed, Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.layout.block_layout import BlockLayout
from headrace.server.layout.packed_columns import PackedColumns, packed_columns
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.order_stages.packing.packed_rows import LoneRows, PackedFinder, fit, take
from headrace.server.plan.compiled import walk
from headrace.server.plan.plain_finder import table_bytes
from headrace.server.plan.stream_request import Readable
from headrace.storage import (
    PackingPointer,
    RowTable,
    Store,
    StoredLengths,
    read_row_counts,
)
from headrace.v1 import shard_service_pb2 as pb

_DIGEST_BYTES = 16
# The most open orders for a length; jobs with equal seeds share one.
_MAX_ORDERS = 16
# The most open rows of all datasets and lengths.
_MAX_ROWS = 256


MakeMixture = Callable[[Sequence[Member], MixtureSpec, Sequence[Skips | None]], Mixed]


class PackedStage(OrderStage):
    """Documents, packed into rows.

    Args:
        inner: What the documents are read from.
        packed: The columns of rows.

    Attributes:
        packed: The same.
    """

    def __init__(self, inner: Served, packed: PackedColumns) -> None:
        super().__init__(inner)
        self.packed = packed
        self.has_pieces = True

    def writer(self, columns: Sequence[WireColumn]) -> Callable[[BlockLayout], BatchWriter]:
        """Return what writes batches with these columns, of blocks of a layout."""
        return rows_writer(columns, self.packed, self.shown_samples)


class ServedRows(PackedStage):
    """The rows of a dataset for one length.

    Args:
        base: The dataset.
        pointer: The pointer to its tables for packing.
        table: The row counts for the length.
        store: The store of both.
        opened: Opens the rows of other versions.

    Attributes:
        name: The name under which they are served.
        samples_an_item: The approximate number of documents in a row.
        rows: How documents are packed.
        table: The shard table of their order.

    Raises:
        BadArgumentError: A column cannot be packed.
        ManifestCorruptError: The stored tables are damaged.
    """

    def __init__(
        self,
        base: ServedDataset,
        pointer: PackingPointer,
        table: RowTable,
        store: Store,
        *,
        opened: OpenRows,
    ) -> None:
        self._opened = opened
        options = table.options
        self._base = base
        lengths = StoredLengths(store, pointer)
        groups = lengths.groups
        packed = packed_columns(
            base.readable.columns,
            (pointer.column, *pointer.alike),
            length=options.length,
            bos=options.bos,
            eos=options.eos,
            fill=options.fill,
            tokenizer=pointer.tokenizer,
        )
        super().__init__(base, packed)
        self.name = f"{base.name}:{options.length}"
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
        self.samples_an_item = max(1, pointer.sample_count // max(1, self.rows.row_count))
        self._readable = Readable(
            fingerprint=rows_fingerprint(pointer, table),
            sample_count=self.rows.row_count,
            columns=self.packed.columns,
            refused={},
            max_batch_bytes=base.readable.max_batch_bytes,
        )
        self._finders: LruCache[Hashable, PackedFinder] = LruCache(_MAX_ORDERS)

    def mixed(
        self, members: Sequence[Member], spec: MixtureSpec, skips: Sequence[Skips | None]
    ) -> Mixed:
        """Return the mixture of the rows of several datasets.

        Raises:
            BadArgumentError: Some are samples, or the rows differ in form.
        """
        return self._opened.mixed(members, spec, skips)

    @property
    def base(self) -> ServedDataset:
        """Return the dataset of the documents."""
        return self._base

    @property
    def readable(self) -> Readable:
        """Return what requests are checked against."""
        return self._readable

    @property
    def classes(self) -> list[pb.ColumnClasses]:
        """Return an empty list, because documents have no labels."""
        return []

    @property
    def epoch_bytes(self) -> int:
        """Return the raw bytes of all rows."""
        return int(self.table.raw_bytes.sum())

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> PackedFinder:
        """Return the finder for the order of a spec; streams with equal specs share it."""
        key = (spec, "" if skips is None else skips.digest)
        return self._finders.get_once(key, lambda: self._new_finder(spec, skips))

    def unskipped_finder(self, spec: OrderSpec) -> PackedFinder:
        """Return the finder for the order of a spec."""
        return self.finder(spec)

    def _new_finder(self, spec: OrderSpec, skips: Skips | None) -> PackedFinder:
        order = Order(spec, self.table, walk=walk)
        return PackedFinder(
            LoneRows(order),
            [self.rows],
            self._base.dataset,
            first_ids=np.array([0, self._base.dataset.sample_count]),
            key=lambda _, epoch: packing_key(spec.seed, epoch),
            fingerprint=self.readable.fingerprint,
            lane_bytes=rows_bytes(spec, self.table, order.memory_samples),
            skips=skips,
        )

    def lengths(self, *, field: str, cost: str = "") -> NoReturn:
        """Refuse, because all rows have the same length.

        Raises:
            BadArgumentError: Always.
        """
        del cost
        raise BadArgumentError(
            f"all rows of {self.name!r} have {self.packed.length} elements, but {field} needs "
            f"samples of several lengths; leave {field} out, or ask for {self._base.name!r}",
            field=field,
        )

    def describe(self, start: pb.StreamStart) -> None:
        """Describe the rows in the first message of a stream."""
        start.dataset.CopyFrom(self.to_proto())

    def version(self, fingerprint: str) -> ServedRows:
        """Return the rows with a fingerprint, or of the version with it; these if it is empty.

        Raises:
            TokenDatasetChangedError: No stored version of the dataset has these rows.
        """
        own = self._base.dataset.fingerprint
        if fingerprint in {"", self.readable.fingerprint, own}:
            return self
        for version, candidate in versions_of(self._base, self.packed.length):
            if fingerprint in {candidate, version} and version != own:
                return self._opened.get(self._base.version(version), self.packed.length)
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
            HeadraceError: The store cannot be reached.
        """
        own = self.readable.fingerprint
        found = [candidate for _, candidate in versions_of(self._base, self.packed.length)]
        return (own, *(each for each in found if each != own))

    def to_proto(self) -> pb.Dataset:
        """Return the rows in the wire's description of a dataset."""
        described = self._base.to_proto()
        described.name = self.name
        described.fingerprint = self.readable.fingerprint
        described.sample_count = self.readable.sample_count
        described.document_count = self.base.dataset.sample_count
        described.ClearField("columns")
        described.columns.extend(column.to_proto() for column in self.readable.columns)
        return described


class OpenRows:
    """The rows of datasets by their length, each opened once. Safe for several threads.

    Args:
        mixed: Makes mixtures of rows; see `Member.mixed`.
    """

    def __init__(self, mixed: MakeMixture) -> None:
        self.mixed = mixed
        self._open: LruCache[Hashable, ServedRows] = LruCache(_MAX_ROWS)

    def get(self, base: ServedDataset, length: int) -> ServedRows:
        """Return the rows of a length.

        Raises:
            DatasetNotFoundError: The tables for packing are not stored for it; the message names
                the lengths that have them.
            HeadraceError: The tables cannot be read.
        """
        found = self._open.find((base, length))
        if found is not None:
            return found
        pointer, store = base.tables.pointer(), base.tables.store
        tables = () if pointer is None else pointer.rows
        table = next((each for each in tables if each.options.length == length), None)
        if pointer is None or table is None or store is None:
            lengths = [each.options.length for each in tables]
            known = f"lengths {', '.join(map(str, lengths))} are" if lengths else "no length is"
            raise DatasetNotFoundError(
                f"{known} stored for packing {base.name!r}; store {length} with `headrace "
                f"index URL --pack-length {length}`",
                dataset=f"{base.name}:{length}",
            )
        self._open.drop_if(lambda rows: rows.base.retirement.why is not None)
        # Without the lock, because the store may be slow, and other datasets have other stores.
        made = ServedRows(base, pointer, table, store, opened=self)
        return self._open.get_once((base, length), lambda: made)


def rows_bytes(spec: OrderSpec, groups: ShardTable, memory_rows: int) -> int:
    """Return the raw bytes of the documents that a lane reads rows from at a time.

    Each row brings together documents of its whole group. Groups begin and end at different times,
    so one more of them is open than hold as many rows as are shuffled together.

    Args:
        spec: How rows are shuffled.
        groups: The shard table of rows: a shard is a group.
        memory_rows: The number of rows shuffled together.
    """
    shuffled = table_bytes(spec, groups, memory_rows)
    if not shuffled:
        return 0
    group = int(groups.raw_bytes.max())
    return min((-(-shuffled // group) + 1) * group, int(groups.raw_bytes.sum()))


def versions_of(base: ServedDataset, length: int) -> Iterator[tuple[str, str]]:
    """Yield the versions that have rows of a length, and the fingerprints of these rows.

    Raises:
        HeadraceError: The store cannot be reached.
    """
    if base.versions is None:
        return
    for version in base.versions.candidates():
        pointer = base.tables.pointer(version)
        for table in () if pointer is None else pointer.rows:
            if pointer is not None and table.options.length == length:
                yield version, rows_fingerprint(pointer, table)


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


def length_of(text: str) -> int | None:
    """Return the length of rows that the end of a name states, if it does."""
    is_length = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_length else None


_MOST_DIGITS = 7
