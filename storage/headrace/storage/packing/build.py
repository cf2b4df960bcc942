"""Store what packing a dataset's documents needs.

Contract of `store_packing`:

1. Success: ``packing.json`` of the current version names its lengths and groups, and row counts for
   the requested options in addition to those it named before.
2. Known lengths are not read again: those stored for this version, or for an earlier one that this
   one continues.
3. Failure or crash before the last write: nothing changes, but files that no ``packing.json`` names
   may remain in the folder of a version, with which `collect_garbage` removes them.
4. Conflict: if another writer was first, its result stays, and the caller gets an error.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, ObjectNotFoundError
from headrace.storage.packing.groups import (
    GROUP_DTYPE,
    Group,
    encode_page,
    group_row,
    grouped,
)
from headrace.storage.packing.lengths import Documents, Part, mapped, read_lengths
from headrace.storage.packing.pointer import (
    PACKING_FOLDER,
    PackingPointer,
    RowOptions,
    RowTable,
    StoredFile,
    encode_packing,
    packing_name,
)
from headrace.storage.packing.stored import StoredLengths, digest_of, read_packing, read_row_counts
from headrace.storage.source.source import OpenDataset
from headrace.storage.store.store import Store, Version

CountRows = Callable[[NDArray[np.int64], RowOptions], int]
"""Returns the number of rows of a group of documents, given their lengths."""
Progress = Callable[[int, int], None]

_DIGEST_BYTES = 16


def store_packing(
    store: Store,
    dataset: OpenDataset,
    options: RowOptions,
    *,
    documents: Documents,
    count_rows: CountRows,
    earlier: PackingPointer | None = None,
    refuse_longer: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> PackingPointer:
    """Store the lengths of a version's documents, and the row counts of its groups.

    Args:
        store: The store of the dataset.
        dataset: The version.
        options: How documents become rows.
        documents: The column of documents, and columns with the same lengths, which are packed in
            the same way.
        count_rows: Returns the number of rows of a group.
        earlier: What is stored for an earlier version that this one continues.
        refuse_longer: Whether a document that is longer than a row is an error.
        progress: Called with the number of blocks read, or groups counted, and their total.

    Returns:
        The new contents of ``packing.json``.

    Raises:
        BadArgumentError: A document is too long or cannot be tokenized, or columns differ in
            length.
        ManifestCorruptError: What is stored is damaged.
        CommitConflictError: Another writer was first.
    """
    source = (documents.digest, *documents.columns)
    known = read_packing(store, dataset.fingerprint)
    if known is not None and known.source != source:
        known = None
    version = _version(store, packing_name(dataset.fingerprint))
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="headrace-packing") as threads:
        lengths = LengthSource(
            dataset.fingerprint,
            dataset.sample_count,
            documents,
            lambda first: read_lengths(
                dataset,
                documents,
                first_sample=first,
                threads=threads,
                progress=lambda done: progress(done, dataset.block_count),
            ),
        )
        work = _Work(store, lengths, count_rows, threads, progress, refuse_longer)
        if earlier is not None and earlier.source != source:
            earlier = None
        if known is None:
            known = work.read(options, earlier)
        else:
            # Rows for lengths that were stored at conversion have not been counted yet.
            others = () if known.rows or earlier is None else earlier.rows
            for each in [*(table.options for table in others), options]:
                known = work.counted(known, each)
    content = encode_packing(known)
    name = packing_name(dataset.fingerprint)
    if version is None:
        store.write_if_absent(name, content)
    else:
        store.write_if_unchanged(name, content, version)
    return known


@dataclass(frozen=True, slots=True, eq=False)
class LengthSource:
    """Where the lengths of a version's documents come from.

    Attributes:
        fingerprint: The fingerprint of the version.
        sample_count: The number of its documents.
        documents: The columns of the documents.
        parts: Yields lengths and sizes in memory, from a given document on.
    """

    fingerprint: str
    sample_count: int
    documents: Documents
    parts: Callable[[int], Iterator[Part]]


def store_lengths(
    store: Store, source: LengthSource, earlier: PackingPointer | None
) -> PackingPointer:
    """Store the lengths, but no row counts, of a version for which nothing is stored yet.

    Args:
        store: The store of the dataset.
        source: Where the lengths come from.
        earlier: See `store_packing`, with lengths of the same documents.

    Returns:
        What was stored.

    Raises:
        ManifestCorruptError: What is stored is damaged.
        CommitConflictError: Another writer was first.
    """

    def no_rows(_lengths: NDArray[np.int64], _options: RowOptions) -> int:
        raise AssertionError("no options are given")

    with ThreadPoolExecutor(1, thread_name_prefix="headrace-packing") as threads:
        work = _Work(store, source, no_rows, threads, lambda _done, _total: None, False)
        pointer = work.read(None, earlier)
    cost = source.documents.columns[0] if source.documents.are_costs else ""
    store.write_if_absent(packing_name(source.fingerprint, cost), encode_packing(pointer))
    return pointer


class _Work:
    """One run of `store_packing`, or of `store_lengths`."""

    def __init__(  # noqa: PLR0917 - the same for all that it does
        self,
        store: Store,
        source: LengthSource,
        count_rows: CountRows,
        threads: Executor,
        progress: Progress,
        refuse_longer: bool,  # noqa: FBT001 - as `store_packing` has it
    ) -> None:
        self._store = store
        self._source = source
        self._documents = source.documents
        self._count_rows = count_rows
        self._threads = threads
        self._progress = progress
        self._refuse_longer = refuse_longer

    def counted(self, known: PackingPointer, options: RowOptions) -> PackingPointer:
        """Add row counts to what is stored for a version."""
        stored = StoredLengths(self._store, known)
        count = len(stored.groups)

        def rows(group: int) -> int:
            lengths = stored.read_group(group)
            self._check(lengths, options, first=0)
            return self._count_rows(lengths, options)

        counts = []
        for done, each in enumerate(mapped(rows, range(count), self._threads)):
            counts.append(each)
            self._progress(done + 1, count)
        return _with_rows(known, self._row_table(options, counts))

    def read(self, options: RowOptions | None, earlier: PackingPointer | None) -> PackingPointer:
        """Read the lengths of a version, except for those of an earlier version.

        Args:
            options: How documents become rows; None counts no rows.
            earlier: What is stored of it.
        """
        counted = () if earlier is None or options is None else earlier.rows
        wanted = {each.options.length: each for each in counted}
        tables = {length: table.options for length, table in wanted.items()}
        if options is not None:
            tables[options.length] = options
        kept = _EarlierPart(self._store, earlier)
        counts = {
            length: kept.row_counts(wanted[length])
            if length in wanted and wanted[length].options == each
            else list(self._kept_counts(kept, each))
            for length, each in tables.items()
        }
        rows, empty = kept.rows(), sum(int((own == 0).sum()) for own in kept.lengths())
        name = f"{PACKING_FOLDER}/{self._source.fingerprint}/{uuid.uuid4().hex[:8]}"
        writer, digest, size = self._store.open_writer(f"{name}.lengths"), _digest(), 0
        try:
            for page in kept.pages():
                writer.write(page)
                digest.update(page)
                size += len(page)
            first = kept.document_count
            for group, found in self._fresh(kept, list(tables.values())):
                if options is not None:
                    self._check(group.lengths, options, first=first)
                first += len(group.lengths)
                empty += int((group.lengths == 0).sum())
                page, item_bytes = encode_page(group.lengths)
                rows.append(group_row(group, page, item_bytes))
                writer.write(page)
                digest.update(page)
                size += len(page)
                for length, count in zip(tables, found, strict=True):
                    counts[length].append(count)
            writer.close()
        except BaseException:
            writer.abort()
            raise
        groups = np.array(rows, GROUP_DTYPE).tobytes()
        pointer = PackingPointer(
            dataset=self._source.fingerprint,
            column=self._documents.columns[0],
            alike=self._documents.columns[1:],
            sample_count=self._source.sample_count,
            empty_count=empty,
            lengths=StoredFile(f"{name}.lengths", size, digest.hexdigest()),
            groups=self._written(f"{name}.groups", groups),
            tokenizer=self._documents.digest,
        )
        for length, each in tables.items():
            pointer = _with_rows(pointer, self._row_table(each, counts[length]))
        return pointer

    def _kept_counts(self, kept: _EarlierPart, options: RowOptions) -> Iterator[int]:
        first = 0
        for lengths in kept.lengths():
            self._check(lengths, options, first=first)
            first += len(lengths)
            yield self._count_rows(lengths, options)

    def _fresh(
        self, kept: _EarlierPart, options: Sequence[RowOptions]
    ) -> Iterator[tuple[Group, list[int]]]:
        """Yield the groups that are not stored yet, each with its row counts for all options."""

        def counted(group: Group) -> tuple[Group, list[int]]:
            return group, [self._count_rows(group.lengths, each) for each in options]

        parts = self._source.parts(kept.document_count + kept.open_count)
        yield from mapped(counted, grouped(chain(kept.open_part(), parts)), self._threads)

    def _check(self, lengths: NDArray[np.int64], options: RowOptions, *, first: int) -> None:
        if not self._refuse_longer or int(lengths.max(initial=0)) + options.marks <= options.length:
            return
        row = int(lengths.argmax())
        raise BadArgumentError(
            f"sample {first + row} has {lengths[row]} elements, which with {options.marks} around "
            f"them exceed a row of {options.length}; allow it to be cut, or use longer rows",
            field="length",
        )

    def _row_table(self, options: RowOptions, counts: Sequence[int]) -> RowTable:
        content = np.array(counts, "<u4").tobytes()
        name = f"{PACKING_FOLDER}/{self._source.fingerprint}/{uuid.uuid4().hex[:8]}.rows"
        return RowTable(options, sum(counts), self._written(name, content))

    def _written(self, name: str, content: bytes) -> StoredFile:
        self._store.write(name, content)
        return StoredFile(name, len(content), digest_of(content))


class _EarlierPart:
    """The part of an earlier version that is kept: all its groups except the last.

    Args:
        store: The store of the dataset.
        earlier: What is stored of it, or `None` for nothing.

    Attributes:
        document_count: The number of documents in the kept groups.
        open_count: The number of documents in the last group, which continues.
    """

    def __init__(self, store: Store, earlier: PackingPointer | None) -> None:
        self._store = store
        self._stored = None if earlier is None else StoredLengths(store, earlier)
        self._groups = np.empty(0, GROUP_DTYPE) if self._stored is None else self._stored.groups
        self._count = max(0, len(self._groups) - 1)
        documents = self._groups["sample_count"].astype(np.int64)
        self.document_count = int(documents[: self._count].sum())
        self.open_count = int(documents[self._count :].sum())

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Return their rows of the table of groups."""
        return [tuple(row.tolist()) for row in self._groups[: self._count]]

    def row_counts(self, table: RowTable) -> list[int]:
        """Return the number of rows of each group."""
        found = read_row_counts(self._store, table, group_count=len(self._groups))
        counts: list[int] = found[: self._count].tolist()
        return counts

    def lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the lengths of each group."""
        for group in range(self._count):
            assert self._stored is not None
            yield self._stored.read_group(group)

    def pages(self) -> Iterator[bytes]:
        """Yield their lengths in stored form."""
        return (encode_page(lengths)[0] for lengths in self.lengths())

    def open_part(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the documents of the last group, with its bytes spread evenly over them."""
        if self._stored is None or not self.open_count:
            return
        raw = int(self._groups["raw_bytes"][self._count])
        edges = raw * np.arange(self.open_count + 1) // self.open_count
        yield self._stored.read_group(self._count), np.diff(edges)


def _with_rows(pointer: PackingPointer, table: RowTable) -> PackingPointer:
    others = [each for each in pointer.rows if each.options.length != table.options.length]
    rows = sorted([*others, table], key=lambda each: each.options.length)
    return replace(pointer, rows=tuple(rows))


def _version(store: Store, name: str) -> Version | None:
    with suppress(ObjectNotFoundError):
        return store.read_versioned(name)[1]
    return None


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)
