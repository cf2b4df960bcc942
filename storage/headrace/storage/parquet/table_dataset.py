"""A version of a table that a catalog knows, open for reading."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import pyarrow as pa

from headrace.errors import NotADatasetError, ObjectNotFoundError
from headrace.storage.parquet.dataset import ParquetDataset
from headrace.storage.parquet.index import ParquetIndex
from headrace.storage.store.store import Store

_DIGEST_BYTES = 8
_VERSION_DIGITS = 16
_FINGERPRINT = re.compile("[0-9a-f]{32}")


class TableDataset(ParquetDataset):
    """A version of a table of a catalog, as a dataset of its Parquet files.

    Its fingerprint begins with the number of the version, 16 hexadecimal digits, so that it can be
    opened again by its fingerprint alone; the rest is a digest of the table's identity and of all
    that is read. A table without versions has the fingerprint of its files.

    Args:
        files: The store of its files; closed by `close`.
        index: All that is known about those of the version.
        url: The URL of the table, by its name.
        identity: What distinguishes it from other tables of its name.
        gone: Returns what to say about a file that has gone.
    """

    def __init__(
        self, files: Store, index: ParquetIndex, *, url: str, identity: str, gone: Callable[[], str]
    ) -> None:
        super().__init__(files, index)
        self.url = url
        self.fingerprint = table_fingerprint(index, identity)
        self._gone = gone

    def _read_some(self, block: int, names: tuple[str, ...] | None) -> pa.RecordBatch:
        try:
            return super()._read_some(block, names)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"{error.message}: {self._gone()}", **error.metadata
            ) from error


def table_fingerprint(index: ParquetIndex, identity: str) -> str:
    """Return the fingerprint of a version of a table, 32 hexadecimal digits."""
    if index.table_version is None:
        return index.fingerprint
    told = f"{identity}\n{index.fingerprint}".encode()
    digest = hashlib.blake2b(told, digest_size=_DIGEST_BYTES)
    return f"{index.table_version:016x}{digest.hexdigest()}"


def version_in(fingerprint: str, *, url: str) -> int:
    """Return the number of the version in a fingerprint.

    Raises:
        NotADatasetError: It is no fingerprint.
    """
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise NotADatasetError(
            f"{url} has no version {fingerprint[:100]}; a fingerprint has 32 hexadecimal digits",
            url=url,
        )
    return int(fingerprint[:_VERSION_DIGITS], 16)
