"""The place of a table that a catalog knows by its name: it has no objects of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from headrace.errors import ObjectNotFoundError, StoreRefusedError
from headrace.storage.store.safe_url import safe_url
from headrace.storage.store.store import ObjectEntry, PendingUpload, Version


class NameStore:
    """A store without objects, into which nothing can be written; others add some to read.

    Args:
        url: The name of the table.
    """

    def __init__(self, url: str) -> None:
        self.url = safe_url(url).rstrip("/")

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        del offset, length
        raise ObjectNotFoundError(f"there is no {name} in {self.url}", url=self.url, name=name)

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        return self.read(name), Version("")

    def write(self, name: str, content: bytes) -> None:
        del content
        self._refuse(name)

    def write_if_absent(self, name: str, content: bytes) -> None:
        self.write(name, content)

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        del version
        self.write(name, content)

    def list(self, prefix: str = "") -> Iterator[str]:
        del prefix
        return iter(())

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        del prefix
        return iter(())

    def entry(self, name: str) -> ObjectEntry | None:
        del name
        return None

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        return self.read(entry.name, offset=offset, length=length)

    def list_unfinished(self) -> Iterator[PendingUpload]:
        return iter(())

    def discard(self, unfinished: PendingUpload) -> None:
        self._refuse(unfinished.name)

    def delete(self, name: str) -> None:
        self._refuse(name)

    def open_writer(self, name: str) -> NoReturn:
        self._refuse(name)

    def below(self, name: str) -> NameStore:
        return NameStore(f"{self.url}/{name}")

    def close(self) -> None:
        """Do nothing."""

    def _refuse(self, name: str) -> NoReturn:
        raise StoreRefusedError(
            f"{name} cannot be written to {self.url}, which names a table or a split; write to a "
            "folder of a store, such as s3://bucket/dataset",
            url=self.url,
            name=name,
        )
