"""Cache parsed footers of files, within a budget."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow.parquet as pq

from headrace.storage.parquet.footer import Footer, read_known_footer
from headrace.storage.parquet.index import IndexedFile
from headrace.storage.store.store import Store

_BUDGET_BYTES = 32 << 20  # as stored; a parsed footer takes about five times as much


class FooterCache:
    """Footers by the ordinal of their file. Safe to use from several threads.

    If two threads miss the same footer, both read it, and one result is kept.
    """

    def __init__(self, files: Store, indexed: tuple[IndexedFile, ...]) -> None:
        self._files = files
        self._indexed = indexed
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[Footer, pq.FileMetaData]] = OrderedDict()
        self._kept_bytes = 0

    def get(self, ordinal: int) -> tuple[Footer, pq.FileMetaData]:
        """Return a footer, verified against the index.

        Raises:
            ShardCorruptError: It has changed since it was indexed.
        """
        with self._lock:
            found = self._kept.get(ordinal)
            if found is not None:
                self._kept.move_to_end(ordinal)
                return found
        file = self._indexed[ordinal]
        footer = read_known_footer(
            self._files, file.entry, length=file.footer_bytes, digest=file.footer_digest
        )
        with footer.file() as opened:
            found = (footer, opened.metadata)
        self._keep(ordinal, found)
        return found

    def _keep(self, ordinal: int, found: tuple[Footer, pq.FileMetaData]) -> None:
        with self._lock:
            if ordinal in self._kept:
                return
            self._kept[ordinal] = found
            self._kept_bytes += len(found[0].content)
            while self._kept_bytes > _BUDGET_BYTES and len(self._kept) > 1:
                _, (footer, _) = self._kept.popitem(last=False)
                self._kept_bytes -= len(footer.content)
