"""The interface between datasets and the stores that hold their bytes.

Our own shards are named by a manifest and never change. Other files may be renamed and changed, so
each is listed with its size and version, and `Store.read_entry` names the version that it expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NewType, Protocol
from urllib.parse import urlsplit

from headrace.errors import BadArgumentError, ConfigurationError, ShardCorruptError
from headrace.storage.store.options import StoreOptions

MARKER_FOLDER = "commits"
"""Where stores without conditional writes mark commits that are under way."""

Version = NewType("Version", str)
"""What a store says of one state of one object; equal where the object is unchanged."""


_CONTENT = "etag:"


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One object as the store lists it. Two are equal if their names, sizes and versions are.

    Attributes:
        name: Relative to the root.
        stored_bytes: Its size.
        version: ``etag:`` and what the store derives from the content, or ``time:`` and when it
            was last written, for stores that know no more.
        modified_s: When it was last written, in seconds since 1970 by the store's clock, or `None`
            where the store does not say.
    """

    name: str
    stored_bytes: int
    version: str
    modified_s: float | None = field(default=None, compare=False)

    @property
    def content_version(self) -> str:
        """The version if it follows from the content, else an empty text.

        A time differs between two copies of the same file, so it shows a change but identifies no
        content.
        """
        return self.version if self.version.startswith(_CONTENT) else ""

    @property
    def written_s(self) -> float:
        """When it was last written, in seconds since 1970.

        Raises:
            ConfigurationError: The store does not say.
        """
        if self.modified_s is None:
            raise ConfigurationError(
                f"the store does not say when {self.name} was written, so its age is unknown and "
                "it is not removed; remove it by hand"
            )
        return self.modified_s

    def changed(self, found: ObjectEntry, *, url: str) -> ShardCorruptError:
        """Return the error that says what was expected and what was found."""
        return ShardCorruptError(
            f"file {self.name} in {url} has changed: {self.stored_bytes} bytes and version "
            f"{self.version} when it was indexed, {found.stored_bytes} bytes and version "
            f"{found.version} now; reopen the dataset, or store its index again with `headrace "
            "index`",
            shard=self.name,
            offset=0,
        )


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An object that a writer began and has neither published nor discarded.

    Attributes:
        name: What the object would have been called.
        key: The store's own name for it.
        stored_bytes: Its current size, or 0 if the store does not say.
        modified_s: When it was begun or last written, in seconds since 1970.
    """

    name: str
    key: str
    stored_bytes: int
    modified_s: float


class ObjectWriter(Protocol):
    """An object that is being written; nothing of it can be seen before `close`."""

    def write(self, chunk: bytes) -> None:
        """Append ``chunk``; may send some of what came before."""

    def close(self) -> None:
        """Publish the object whole."""

    def abort(self) -> None:
        """Leave nothing behind; harmless after `close`."""


class Store(Protocol):
    """Objects under one root, by relative name. Safe to call from several threads.

    All methods raise `StoreRefusedError` if the store refuses, and `StoreUnavailableError` if it
    cannot be reached or throttles, after all retries.
    """

    @property
    def url(self) -> str:
        """Where the root is, without credentials."""

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes ``[offset, offset + length)``, fewer only where the object ends before.

        Raises:
            ObjectNotFoundError: There is no such object.
        """

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        """Return a whole object and the version to replace it by.

        Raises:
            ObjectNotFoundError: There is no such object.
        """

    def write(self, name: str, content: bytes) -> None:
        """Write a whole object, or replace it, at once."""

    def write_if_absent(self, name: str, content: bytes) -> None:
        """Write a whole object where there is none.

        Raises:
            CommitConflictError: There is one.
        """

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        """Replace an object that still is as it was read.

        Raises:
            CommitConflictError: It is not.
        """

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that start with ``prefix``, in no particular order."""

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        """Yield what starts with ``prefix``, in any order; nothing if there is no root."""

    def entry(self, name: str) -> ObjectEntry | None:
        """Return one object as it is now, or `None` if there is none of that name."""

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        """Return exactly bytes ``[offset, offset + length)`` of an object that has not changed.

        Raises:
            ObjectNotFoundError: It is gone.
            ShardCorruptError: It is not of the version that ``entry`` states, or shorter.
        """

    def list_unfinished(self, prefix: str = "") -> Iterator[Unfinished]:
        """Yield the unfinished uploads of dead and living writers under ``prefix``."""

    def discard(self, unfinished: Unfinished) -> None:
        """Discard an unfinished upload; it is no error if it is gone."""

    def delete(self, name: str) -> None:
        """Remove an object; it is no error if there is none."""

    def open_writer(self, name: str) -> ObjectWriter:
        """Start an object whose size is not known yet, written with bounded memory."""

    def close(self) -> None:
        """Give connections back."""


def open_store(url: str, *, options: StoreOptions | None = None) -> Store:
    """Open the store of ``url`` without a request.

    Args:
        url: A local path, ``file://``, ``s3://bucket/prefix``, or any URL that fsspec knows. On
            Databricks also ``dbfs:/Volumes/...``, which is the path ``/Volumes/...``.
        options: Endpoint, credentials, timeouts, retries; defaults as `StoreOptions` says.

    Raises:
        BadArgumentError: The URL has no root, or its scheme is not known or not installed.

    Examples:
        >>> store = open_store("notes")
        >>> store.write("a/note.txt", b"hello")
        >>> list(store.list())
        ['a/note.txt']
        >>> store.read("a/note.txt", offset=1, length=3)
        b'ell'
    """
    chosen = options or StoreOptions()
    url = _mounted(url)
    scheme = urlsplit(url).scheme if "://" in url else "file"
    if not url:
        raise BadArgumentError(
            "the URL is empty, expected a path or a URL such as s3://bucket/name"
        )
    # Each store is imported where it is used: a server on local files needs no boto3.
    if scheme == "file":
        from headrace.storage.store.local import LocalStore  # noqa: PLC0415

        return LocalStore(url)
    if scheme in {"s3", "s3a", "s3n"}:
        from headrace.storage.store.s3 import S3Store  # noqa: PLC0415

        return S3Store(url, options=chosen)
    from headrace.storage.store.fsspec_store import FsspecStore  # noqa: PLC0415

    return FsspecStore(url, options=chosen)


def content_version(tag: str) -> str:
    """Return the version of an object that has an entity tag."""
    return _CONTENT + tag.strip('"')


def time_version(stamp: object) -> str:
    """Return the version of an object of which only the time of its last writing is known."""
    return f"time:{stamp}"


def read_unchanged(store: Store, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
    """Read as `Store.read_entry` does, and then ask the store for the object's state.

    After the read, so that an object replaced before or meanwhile is noticed.
    """
    content = store.read(entry.name, offset=offset, length=length)
    found = store.entry(entry.name)
    if found is not None and found != entry:
        raise entry.changed(found, url=store.url)
    check_length(content, entry, url=store.url, offset=offset, length=length)
    return content


def check_length(content: bytes, entry: ObjectEntry, *, url: str, offset: int, length: int) -> None:
    """Refuse a read from an object that is shorter than expected."""
    if len(content) != length:
        raise ShardCorruptError(
            f"file {entry.name} in {url}, at byte {offset}: only {len(content)} more bytes exist; "
            "restore the file",
            shard=entry.name,
            offset=offset,
        )


def _mounted(url: str) -> str:
    """Return the path at which Databricks mounts what a ``dbfs:`` path names, or the URL as it is.

    Its machines see volumes of Unity Catalog at ``/Volumes`` and the rest at ``/dbfs``. A URL with
    a host, ``dbfs://host/...``, is fsspec's.
    """
    path = url.removeprefix("dbfs://") if url.startswith("dbfs:///") else url.removeprefix("dbfs:")
    if path == url or path.startswith("//"):
        return url
    return path if path.startswith("/Volumes/") else f"/dbfs{path}"
