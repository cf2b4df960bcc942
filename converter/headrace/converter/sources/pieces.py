"""Divide datasets of other layouts into numbered pieces that tasks read with Arrow.

So types that Spark lacks (unsigned integers, float16, tensors, encodings of MosaicML) are kept in
the shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import BadArgumentError, ColumnNotFoundError, NotADatasetError
from headrace.storage import OpenDataset, SourceOptions, StoreOptions, open_dataset

_PIECE_BYTES = 64 << 20  # about one shard, so that a retried task repeats little


class SourcePieces(Protocol):
    """Numbered pieces for tasks, in the order of samples."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""

    @property
    def count(self) -> int:
        """The number of pieces."""

    @property
    def raw_bytes(self) -> int:
        """The approximate size of all samples in bytes; 0 if unknown."""

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        """Yield the samples of one piece."""


@dataclass(frozen=True, slots=True)
class DatasetPieces:
    """Pieces of any dataset that `open_dataset` opens: MDS, WebDataset, Delta, Parquet, our own.

    Attributes:
        dataset: The dataset. All pieces share it, because opening may read all its files.
        bounds: Blocks of piece i are ``[bounds[i], bounds[i + 1])``.
    """

    dataset: OpenDataset
    bounds: tuple[int, ...]

    @property
    def schema(self) -> pa.Schema:
        return self.dataset.schema

    @property
    def count(self) -> int:
        return len(self.bounds) - 1

    @property
    def raw_bytes(self) -> int:
        return self.dataset.raw_bytes

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        for block in range(self.bounds[piece], self.bounds[piece + 1]):
            yield self.dataset.read_block(block)


@contextmanager
def dataset_pieces(
    url: str, *, options: StoreOptions, source_options: SourceOptions
) -> Iterator[DatasetPieces]:
    """Open a dataset for as long as its pieces are read, and cut it into pieces of about 64 MiB.

    Raises:
        NotADatasetError: The dataset has no columns, as an MDS index without shards.
        HeadraceError: See `headrace.storage.open_dataset`.
    """
    with open_dataset(url, options=options, source_options=source_options) as dataset:
        if not dataset.schema.names:
            raise NotADatasetError(
                f"{url} has neither samples nor columns, so there is nothing to convert; check "
                "that its writer finished",
                url=url,
            )
        raw_bytes = dataset.block_raw_bytes(np.arange(dataset.block_count))
        yield DatasetPieces(dataset, _bounds(raw_bytes.tolist()))


def _bounds(block_bytes: list[int]) -> tuple[int, ...]:
    bounds, size = [0], 0
    for block, raw_bytes in enumerate(block_bytes):
        if size and size + raw_bytes > _PIECE_BYTES:
            bounds.append(block)
            size = 0
        size += raw_bytes
    return (*bounds, len(block_bytes))


@dataclass(frozen=True, slots=True)
class SelectedPieces:
    """Some columns of other pieces, possibly renamed.

    Attributes:
        pieces: The other pieces.
        columns: The new names by old names, in the requested order.
    """

    pieces: SourcePieces
    columns: Mapping[str, str]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [self.pieces.schema.field(old).with_name(new) for old, new in self.columns.items()]
        )

    @property
    def count(self) -> int:
        return self.pieces.count

    @property
    def raw_bytes(self) -> int:
        is_all = len(self.columns) == len(self.pieces.schema.names)
        return self.pieces.raw_bytes if is_all else 0

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        for batch in self.pieces.read(piece):
            columns = [batch.column(old) for old in self.columns]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def selected(
    pieces: SourcePieces, columns: Sequence[str] | Mapping[str, str] | None
) -> SourcePieces:
    """Keep columns, and rename them.

    Args:
        pieces: The pieces with the columns.
        columns: The columns to keep, or new names by old names; `None` keeps all.

    Raises:
        ColumnNotFoundError: A column does not exist.
        BadArgumentError: Two columns would have the same name.
    """
    if columns is None:
        return pieces
    return SelectedPieces(pieces, new_names(columns, pieces.schema.names))


def new_names(columns: Sequence[str] | Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the new names of chosen columns, by their old names.

    Args:
        columns: The columns to keep, or new names by old names.
        names: All columns.

    Raises:
        ColumnNotFoundError: A column does not exist.
        BadArgumentError: None are chosen, or two would have the same name.
    """
    chosen = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    if isinstance(columns, str) or not chosen or len(set(chosen.values())) < len(columns):
        raise BadArgumentError(
            f"columns is {columns!r}, expected distinct names, or a mapping from old to new names",
            field="columns",
        )
    for name in chosen:
        if name not in names:
            raise ColumnNotFoundError(
                f"there is no column {name!r}; there are {', '.join(names)}", column=name
            )
    return chosen


@dataclass(frozen=True, slots=True)
class ReadPieces:
    """The function that a task calls with the numbers of its pieces. Picklable if they are."""

    pieces: SourcePieces

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the samples of the pieces, in order."""
        for batch in batches:
            for piece in batch.column(0).to_numpy():
                yield from self.pieces.read(int(piece))
