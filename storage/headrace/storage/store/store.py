"""The interface between datasets and the stores that hold their bytes.

A manifest names our own shards, and they never change. Other files may be renamed and changed, so
each is listed with its size and version, and `Store.read_entry` states the version that it expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NewType, Protocol

from headrace.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    ShardCorruptError,
    WorldError,
)

MARKER_FOLDER = "commits"
"""The place of markers for commits in progress, in stores without conditional writes."""

Version = NewType("Version", str)
"""Identifies a state of an object; equal if the object is unchanged."""


_CONTENT = "etag:"

MAY_BE_MISSING = "may_be_missing"
"""A key of the metadata of `StoreRefusedError`: the store does not tell refusal from absence."""


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One object as the store lists it; equal if names, sizes and versions are.

    Attributes:
        name: The name relative to the root.
        stored_bytes: The size of the object.
        version: ``etag:`` and a tag that the store derives from the content, or ``time:`` and the
            time of the last write, for stores without tags.
        modified_s: The time of the last write, in seconds since 1970 by the store's clock; `None`
            if the store does not report it.
    """

    name: str
    stored_bytes: int
    version: str
    modified_s: float | None = field(default=None, compare=False)

    @property
    def content_version(self) -> str:
        """The version if it depends on the content, else an empty text.

        Times differ between copies of a file. So a time shows a change, but does not identify
        content.
        """
        return self.version if self.version.startswith(_CONTENT) else ""

    @property
    def written_s(self) -> float:
        """The time of the last write, in seconds since 1970.

        Raises:
            ConfigurationError: The store does not report it.
        """
        if self.modified_s is None:
            raise ConfigurationError(
                f"the store does not say when {self.name} was written, so its age is unknown and "
                "it is not removed; remove it by hand"
            )
        return self.modified_s

    def changed(self, found: ObjectEntry, *, url: str) -> ShardCorruptError:
        """Return the error that says that the object is another one.

        It tells neither sizes nor versions, which would describe an object of someone else to a
        caller who guesses names.
        """
        state = "size" if self.stored_bytes != found.stored_bytes else "version"
        return ShardCorruptError(
            f"file {self.name} in {url} has changed since it was indexed: it has another {state}; "
            "reopen the dataset, or store its index again with `headrace index`",
            shard=self.name,
            offset=0,
        )


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """An object that a writer started and has neither published nor discarded.

    Attributes:
        name: The name that the object was to have.
        key: The store's own name for the upload.
        stored_bytes: Its current size, or 0 if the store does not report it.
        modified_s: When it was started or last written, in seconds since 1970.
    """

    name: str
    key: str
    stored_bytes: int
    modified_s: float


class ObjectWriter(Protocol):
    """An object that is being written; it becomes visible with `close`."""

    def write(self, chunk: bytes) -> None:
        """Append ``chunk``; may send earlier chunks."""

    def close(self) -> None:
        """Publish the whole object."""

    def abort(self) -> None:
        """Discard the object; harmless after `close`."""


class Store(Protocol):
    """Objects under one root, by relative name; thread-safe.

    All methods raise `StoreRefusedError` if the store refuses a request (see also
    `may_be_missing`), and, after all retries, `StoreUnavailableError` if it cannot be reached or
    throttles requests.
    """

    @property
    def url(self) -> str:
        """The URL of the root, without credentials."""

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes ``[offset, offset + length)``, fewer only if the object ends earlier.

        Raises:
            ObjectNotFoundError: There is no such object.
        """

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        """Return a whole object and the version to replace it by.

        Raises:
            ObjectNotFoundError: There is no such object.
        """

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a whole object atomically."""

    def write_if_absent(self, name: str, content: bytes) -> None:
        """Write a whole object if there is none of this name.

        Raises:
            CommitConflictError: There is an object of this name.
        """

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        """Replace an object if it has not changed since it was read.

        Raises:
            CommitConflictError: It has changed.
        """

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that start with ``prefix``, in no particular order."""

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        """Yield entries of names that start with ``prefix``, in any order; none without a root."""

    def entry(self, name: str) -> ObjectEntry | None:
        """Return the current entry of an object, or `None` if there is none of this name."""

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        """Return exactly the bytes ``[offset, offset + length)`` of an unchanged object.

        Raises:
            ObjectNotFoundError: The object is gone.
            ShardCorruptError: It has another version than ``entry``, or is too short.
        """

    def list_unfinished(self) -> Iterator[PendingUpload]:
        """Yield the unfinished uploads, of dead and living writers."""

    def discard(self, unfinished: PendingUpload) -> None:
        """Discard an unfinished upload; does nothing if it is gone."""

    def delete(self, name: str) -> None:
        """Remove an object; does nothing if there is none."""

    def open_writer(self, name: str) -> ObjectWriter:
        """Start to write an object of unknown size with bounded memory."""

    def below(self, name: str) -> Store:
        """Return a store of the objects whose names start with ``name/``, closed on its own.

        This is the only way from a name that is stored to a place: it leads below the root.

        Raises:
            BadArgumentError: The name could lead out of the root.
            StoreRefusedError: It is behind a link that leads out.
        """

    def close(self) -> None:
        """Close the connections."""


def may_be_missing(error: WorldError) -> bool:
    """Return whether an error says that an object is missing, or that nobody tells the caller.

    For an object that need not exist, the second is to be taken as the first.
    """
    return isinstance(error, ObjectNotFoundError) or MAY_BE_MISSING in error.metadata


def content_version(tag: str) -> str:
    """Return the version of an object with an entity tag."""
    return _CONTENT + tag.strip('"')


def time_version(stamp: object) -> str:
    """Return the version of an object of which only the time of the last write is known."""
    return f"time:{stamp}"


def read_unchanged(store: Store, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
    """Read as `Store.read_entry` does, and then compare the object's state with its entry.

    The comparison comes after the read, so it shows whether the object was replaced before or
    during the read.
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
