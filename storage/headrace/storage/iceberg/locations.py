"""Read the files that an Iceberg table names, below the location that its catalog gives it.

The metadata of a table names manifests, data files and deletes by absolute URLs, so whoever may
write a table could name any object that its readers may read. Here each must lie below the table's
location, or below a prefix of the operator, and is read by the store that was opened there: with
the credentials, the retries and the errors of all stores.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import ConfigurationError, NotADatasetError
from headrace.storage.store.outer_store import normal, outer_name
from headrace.storage.store.store import Store

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


@dataclass(frozen=True, slots=True)
class Files:
    """The files below the location of a table.

    Attributes:
        store: The store of the location.
        location: The location, in its normal form.
        url: The URL of the table, for errors.
        prefixes: Of the operator, below which files may lie too.
    """

    store: Store
    location: str
    url: str
    prefixes: tuple[str, ...] = ()

    def name(self, path: str) -> str:
        """Return the name of a file in the store.

        Raises:
            ConfigurationError: It lies elsewhere.
        """
        found = normal(path)
        name = found.removeprefix(f"{self.location}/")
        if name == found or {"", ".", ".."} & set(name.split("/")):
            if (outer := outer_name(path, self.prefixes)) is not None:
                return outer
            raise ConfigurationError(
                f"{self.url} names the file {path[:500]!r}, which is not below {self.location}, "
                "the location that its catalog gives it; rewrite the table's files there, or give "
                "a prefix of them as source.table_prefixes in the server's configuration",
                url=self.url,
            )
        return name

    def read(self, path: str) -> bytes:
        """Return the content of a file of metadata, or of deletes.

        Raises:
            ConfigurationError: It lies elsewhere.
            ObjectNotFoundError: It is missing.
        """
        return self.store.read(self.name(path))


def file_io(files: Files) -> FileIO:
    """Return what pyiceberg reads files with."""
    from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile  # noqa: PLC0415 - an extra

    class Input(InputFile):
        """A file that is read whole: manifests have a few MiB."""

        def __len__(self) -> int:
            return len(files.read(self.location))

        def exists(self) -> bool:
            return files.store.entry(files.name(self.location)) is not None

        def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002 - pyiceberg's
            return io.BytesIO(files.read(self.location))

    class StoreIO(FileIO):
        """Reads by the store; writes nothing."""

        def new_input(self, location: str) -> InputFile:
            return Input(location)

        def new_output(self, location: str) -> OutputFile:
            raise NotADatasetError(f"{location} is not written by a reader")

        def delete(self, location: str | InputFile | OutputFile) -> None:
            raise NotADatasetError(f"{location} is not deleted by a reader")

    return StoreIO()
