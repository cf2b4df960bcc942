"""The seam between datasets and the places that hold their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType, Protocol
from urllib.parse import urlsplit

from headrace.errors import BadArgumentError
from headrace.storage.store.options import StoreOptions

MARKER_FOLDER = "commits"
"""Where stores without conditional writes mark commits that are under way."""

Version = NewType("Version", str)
"""What a store says of one state of one object; equal where the object is unchanged."""


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One object as a listing shows it.

    Attributes:
        name: Relative to the root.
        stored_bytes: Its size.
        modified_s: When it was last written, in seconds since 1970 by the store's clock.
    """

    name: str
    stored_bytes: int
    modified_s: float


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An object that a writer began and has neither published nor discarded.

    Attributes:
        name: What the object would have been called.
        key: What the store knows it by.
        stored_bytes: What it takes by now, or 0 where the store does not say.
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

    All methods raise `StoreRefusedError` where the store refuses, and `StoreUnavailableError`
    where it cannot be reached or throttles, past all retries.
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
        """Yield what starts with ``prefix`` with size and time, in no particular order.

        Raises:
            ConfigurationError: The store does not say when objects were written.
        """

    def list_unfinished(self, prefix: str = "") -> Iterator[Unfinished]:
        """Yield what dead and living writers have begun under ``prefix`` and not published."""

    def discard(self, unfinished: Unfinished) -> None:
        """Free what an unfinished object takes; one that is gone is no error."""

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""

    def open_writer(self, name: str) -> ObjectWriter:
        """Start an object whose size is not known yet, written with bounded memory."""

    def close(self) -> None:
        """Give connections back."""


def open_store(url: str, *, options: StoreOptions | None = None) -> Store:
    """Open the store of ``url`` without asking it anything.

    Args:
        url: A local path, ``file://``, ``s3://bucket/prefix``, or any URL that fsspec knows. On
            Databricks also ``dbfs:/Volumes/...``, which is the path ``/Volumes/...``.
        options: Endpoint, credentials, timeouts, retries; defaults as `StoreOptions` says.

    Raises:
        BadArgumentError: The URL has no root, or its scheme is not known or not installed.
    """
    chosen = options or StoreOptions()
    url = _mounted(url)
    scheme = urlsplit(url).scheme if "://" in url else "file"
    if not url:
        raise BadArgumentError("the URL is empty, wanted a path or a URL such as s3://bucket/name")
    # Each store is imported where it is used: a server on local files needs no boto3.
    if scheme == "file":
        from headrace.storage.store.local import LocalStore  # noqa: PLC0415

        return LocalStore(url)
    if scheme in {"s3", "s3a", "s3n"}:
        from headrace.storage.store.s3 import S3Store  # noqa: PLC0415

        return S3Store(url, options=chosen)
    from headrace.storage.store.fsspec_store import FsspecStore  # noqa: PLC0415

    return FsspecStore(url, options=chosen)


def _mounted(url: str) -> str:
    """Return the path at which Databricks mounts what a ``dbfs:`` path names, or the URL as it is.

    Its machines see volumes of Unity Catalog at ``/Volumes`` and the rest at ``/dbfs``. A URL with
    a host, ``dbfs://host/...``, is fsspec's.
    """
    path = url.removeprefix("dbfs://") if url.startswith("dbfs:///") else url.removeprefix("dbfs:")
    if path == url or path.startswith("//"):
        return url
    return path if path.startswith("/Volumes/") else f"/dbfs{path}"
