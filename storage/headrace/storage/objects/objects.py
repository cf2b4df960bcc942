"""The files under a URL, with size and version: what a source of others' files needs of a store.

Our own shards are named by a manifest and never change. Files of others do both as they like,
so each is listed with its size and version, and every read says which version it is meant for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from headrace.errors import ShardCorruptError
from headrace.storage.store.options import StoreOptions

_CONTENT = "etag:"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file as the store states it.

    Attributes:
        name: Relative to the root.
        stored_bytes: Its size.
        version: ``etag:`` and what the store derives from the content, or ``time:`` and when it
            was last written, for stores that know no more.
    """

    name: str
    stored_bytes: int
    version: str

    @property
    def content_version(self) -> str:
        """The version if it follows from the content, else nothing.

        A time differs between two copies of the same file, so it tells a change but names
        nothing.
        """
        return self.version if self.version.startswith(_CONTENT) else ""

    def changed(self, found: FileEntry, *, url: str) -> ShardCorruptError:
        """Make the error that says what was expected and what is there."""
        return ShardCorruptError(
            f"file {self.name} in {url} has changed: {self.stored_bytes} bytes and version "
            f"{self.version} when it was indexed, {found.stored_bytes} bytes and version "
            f"{found.version} now; open the dataset anew, or store its index again with "
            "`headrace index`",
            shard=self.name,
            offset=0,
        )


def content_version(tag: str) -> str:
    """Return the version of an object that has an entity tag."""
    return _CONTENT + tag.strip('"')


def time_version(stamp: object) -> str:
    """Return the version of an object of which only the time of its last writing is known."""
    return f"time:{stamp}"


class FileStore(Protocol):
    """Files under one root. Safe to call from several threads.

    All methods raise `StoreRefusedError` and `StoreUnavailableError` as `Store` does.
    """

    @property
    def url(self) -> str:
        """Where the root is, without credentials."""

    def entries(self) -> Iterator[FileEntry]:
        """Yield every file under the root, in no particular order; none if there is no root."""

    def entry(self, name: str) -> FileEntry | None:
        """Return one file, or `None` if there is none of that name."""

    def read(self, entry: FileEntry, *, offset: int, length: int) -> bytes:
        """Return exactly bytes ``[offset, offset + length)`` of a file.

        Raises:
            ObjectNotFoundError: The file is gone.
            ShardCorruptError: It is not of the version that ``entry`` states, or shorter.
        """

    def close(self) -> None:
        """Give connections back."""


def open_files(url: str, *, options: StoreOptions) -> FileStore:
    """Open the files under a URL without asking for anything.

    Raises:
        BadArgumentError: The URL has no root, or its scheme is not known or not installed.
    """
    scheme = urlsplit(url).scheme if "://" in url else "file"
    # Each is imported where it is used: a server on local files needs no boto3.
    if scheme == "file":
        from headrace.storage.objects.local import LocalFiles  # noqa: PLC0415

        return LocalFiles(url)
    if scheme in {"s3", "s3a", "s3n"}:
        from headrace.storage.objects.s3 import S3Files  # noqa: PLC0415

        return S3Files(url, options=options)
    from headrace.storage.objects.fsspec_objects import FsspecFiles  # noqa: PLC0415

    return FsspecFiles(url, options=options)


def short_read(entry: FileEntry, *, url: str, offset: int, found: int) -> ShardCorruptError:
    """Make the error for a file that ends before what is to be read of it."""
    return ShardCorruptError(
        f"file {entry.name} in {url}, at byte {offset}: only {found} bytes more are there; "
        "restore the file",
        shard=entry.name,
        offset=offset,
    )
