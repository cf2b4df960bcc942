"""A snapshot of an Iceberg table, open for reading."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pyarrow as pa

from headrace.errors import ObjectNotFoundError
from headrace.storage.iceberg.locations import Files
from headrace.storage.parquet.dataset import ParquetDataset
from headrace.storage.parquet.index import ParquetIndex

_DIGEST_BYTES = 8


class IcebergDataset(ParquetDataset):
    """A snapshot of an Iceberg table, as a dataset of its Parquet files.

    Its fingerprint begins with the snapshot, 16 hexadecimal digits, so that it can be opened again
    by its fingerprint alone; the rest is a digest of the table's UUID and of all that is read.

    Args:
        files: The files of the table.
        index: All that is known about those of the snapshot.
        identity: The UUID of the table.
        gone: Returns what to say about a file that has gone.
    """

    def __init__(
        self, files: Files, index: ParquetIndex, *, identity: str, gone: Callable[[], str]
    ) -> None:
        super().__init__(files.store, index)
        self.url = files.url
        self.fingerprint = fingerprint_of(index, identity)
        self._gone = gone

    def _read_some(self, block: int, names: tuple[str, ...] | None) -> pa.RecordBatch:
        try:
            return super()._read_some(block, names)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"{error.message}: {self._gone()}", **error.metadata
            ) from error


def fingerprint_of(index: ParquetIndex, identity: str) -> str:
    """Return the fingerprint of a snapshot, 32 hexadecimal digits."""
    told = f"{identity}\n{index.fingerprint}".encode()
    digest = hashlib.blake2b(told, digest_size=_DIGEST_BYTES)
    return f"{index.table_version:016x}{digest.hexdigest()}"
