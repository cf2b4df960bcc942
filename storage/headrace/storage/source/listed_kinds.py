"""Which kinds of datasets the names of a listing show.

A listing is read until a name decides, however many names come before: a Delta table may have
thousands of files of its change feed, and a folder as many checksum files, before the first one.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import ConfigurationError
from headrace.storage.source.kinds import DELTA_LOG_FOLDER, is_parquet_name, is_tar_name
from headrace.storage.store.store import Store

_MOST_NAMES = 1_000_000  # arbitrary: 1,000 pages of S3, which take minutes


class ListedKinds:
    """The kinds of datasets under the root of a store, listed at most once and as far as needed.

    Its methods raise `ConfigurationError` after a million names that show none, and the errors of
    `Store.list`.

    Args:
        store: The store; the caller closes it.
        but: A file, or the folder of files, to leave out.
    """

    def __init__(self, store: Store, *, but: str | None = None) -> None:
        self._store = store
        self._but = None if but is None else f"{but}/"
        self._names: Iterator[str] | None = None
        self._count = 0
        self._parquet = self._tar = ""

    def delta(self) -> str:
        """Return the name of a file of a Delta log, or an empty text."""
        return next(filter(self._counts, self._store.list(f"{DELTA_LOG_FOLDER}/")), "")

    def parquet(self) -> str:
        """Return the name of a Parquet file, or an empty text."""
        while not self._parquet and self._advance():
            pass
        return self._parquet

    def tar(self) -> str:
        """Return the name of a tar file, or an empty text."""
        while not self._tar and self._advance():
            pass
        return self._tar

    def _counts(self, name: str) -> bool:
        return self._but is None or not f"{name}/".startswith(self._but)

    def _advance(self) -> bool:
        if self._names is None:
            self._names = filter(self._counts, self._store.list())
        name = next(self._names, None)
        if name is None:
            return False
        self._count += 1
        if self._count > _MOST_NAMES:
            raise ConfigurationError(
                f"{self._store.url} has more than {_MOST_NAMES:,} files, and the names of these "
                "show no dataset; give the URL of a folder inside it",
                url=self._store.url,
            )
        if is_parquet_name(name):
            self._parquet = self._parquet or name
        elif is_tar_name(name):
            self._tar = self._tar or name
        return True
