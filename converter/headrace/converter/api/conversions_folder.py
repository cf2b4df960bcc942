"""Manage a folder of conversions: find them, know when they expire, and remove them.

Each conversion is a dataset in a folder named by its key, with a small record beside the folders.
Contract:

1. A record that is neither expired nor a claim is written last, and belongs to a whole dataset.
2. A removal lists the files, marks the record as expired unless it has changed since, deletes the
   files of the list, and then the record. If it fails midway, the expired record stays, and the
   next `ConversionCache.remove_expired` goes on.
3. Who converts under a key that has a record claims it first. A removal that finds the claim gives
   up; one that has marked the record before deletes no file that is written after the claim: of
   all names only that of the pointer is used again, so its file must be the one that was listed.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from headrace.errors import HeadraceError, ObjectNotFoundError
from headrace.storage import ObjectEntry, PendingUpload, Store, StoreOptions, open_store

_RECORD = re.compile(r"conversions/([0-9a-f]{32})\.json")
_POINTER = "headrace.json"
_LOCK = ".headrace.lock"  # of a local store
_Files: TypeAlias = tuple[ObjectEntry | None, list[str], list[PendingUpload]]
_CLAIM_S = 7 * 86400.0
"""Seconds after which a claim is left by a driver that has died: longer than any conversion."""


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """When a conversion was made, and when it expires.

    Attributes:
        key: The key from `plan_key`.
        made_s: Seconds since 1970.
        expires_s: Seconds since 1970 after which it is not used, or `None` for never.
        is_claim: Whether it is being converted, so that there is nothing to use yet.
    """

    key: str
    made_s: float
    expires_s: float | None
    is_claim: bool = False

    def is_expired(self, now_s: float) -> bool:
        """Return whether it has expired."""
        return self.expires_s is not None and self.expires_s <= now_s


class ConversionCache:
    """The conversions under one URL, which any number of drivers may share."""

    def __init__(self, url: str, *, options: StoreOptions) -> None:
        self._url = url.rstrip("/")
        self._options = options

    def url_of(self, key: str) -> str:
        """Return the URL of a conversion's dataset."""
        return f"{self._url}/{key}"

    def read(self, key: str) -> ConversionRecord | None:
        """Return the record of a conversion, if there is a readable one."""
        with contextlib.closing(self._open(self._url)) as store:
            return _read(store, key)

    def write(self, record: ConversionRecord) -> None:
        """Record a conversion whose dataset is complete."""
        with contextlib.closing(self._open(self._url)) as store:
            store.write(_name_of(record.key), _content(record))

    def claim(self, key: str, now_s: float) -> None:
        """Keep others from removing, as expired, what is about to be converted under a key."""
        self.write(ConversionRecord(key, now_s, now_s + _CLAIM_S, is_claim=True))

    def remove(self, key: str) -> None:
        """Remove a conversion; a missing one is not an error.

        Raises:
            StoreRefusedError: The store refuses.
            StoreUnavailableError: The store cannot be reached.
        """
        files = self._files(key)
        gone = _content(ConversionRecord(key, 0.0, 0.0))
        with contextlib.closing(self._open(self._url)) as store:
            store.write(_name_of(key), gone)
            self._remove_files(key, files)
            _delete_record(store, key, gone)

    def remove_expired(self, now_s: float) -> None:
        """Remove expired conversions, as far as the store allows."""
        with contextlib.suppress(HeadraceError):
            for record in list(self._records()):
                if record.is_expired(now_s):
                    with contextlib.suppress(HeadraceError):  # the others may be removable
                        self._remove_if_expired(record.key, now_s)

    def _remove_if_expired(self, key: str, now_s: float) -> None:
        files = self._files(key)
        gone = _content(ConversionRecord(key, 0.0, 0.0))
        with contextlib.closing(self._open(self._url)) as store:
            # The list is older than what is read here: whoever claims it later, writes later.
            content, version = store.read_versioned(_name_of(key))
            found = _parsed(key, content)
            if found is None or not found.is_expired(now_s):
                return
            store.write_if_unchanged(_name_of(key), gone, version)
            self._remove_files(key, files)
            _delete_record(store, key, gone)

    def _files(self, key: str) -> _Files:
        with contextlib.closing(self._open(self.url_of(key))) as store:
            names = [name for name in store.list() if name != _POINTER]
            return store.entry(_POINTER), names, list(store.list_unfinished())

    def _remove_files(self, key: str, files: _Files) -> None:
        pointer, names, unfinished = files
        with contextlib.closing(self._open(self.url_of(key))) as store:
            if store.entry(_POINTER) == pointer:
                store.delete(_POINTER)  # from now on it is no dataset, never an incomplete one
            for name in names:
                store.delete(name)
            for upload in unfinished:
                store.discard(upload)
            _remove_empty_folders(Path(store.url))

    def _records(self) -> Iterator[ConversionRecord]:
        with contextlib.closing(self._open(self._url)) as store:
            for name in store.list("conversions/"):
                found = _RECORD.fullmatch(name)
                record = _read(store, found[1]) if found else None
                if record is not None:
                    yield record

    def _open(self, url: str) -> Store:
        return open_store(url, options=self._options)


def _name_of(key: str) -> str:
    return f"conversions/{key}.json"


def _remove_empty_folders(root: Path) -> None:
    """Remove what remains of a local conversion: its folders, and its lock if nothing else is."""
    for folder, _, files in os.walk(root, topdown=False):
        if Path(folder) == root and files == [_LOCK]:
            (root / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def _content(record: ConversionRecord) -> bytes:
    return json.dumps(asdict(record)).encode()


def _delete_record(store: Store, key: str, gone: bytes) -> None:
    """Delete the record of a removed conversion, unless somebody has claimed the key since."""
    with contextlib.suppress(ObjectNotFoundError):
        if store.read(_name_of(key)) == gone:
            store.delete(_name_of(key))


def _read(store: Store, key: str) -> ConversionRecord | None:
    try:
        return _parsed(key, store.read(_name_of(key)))
    except ObjectNotFoundError:
        return None


def _parsed(key: str, content: bytes) -> ConversionRecord | None:
    try:
        fields = json.loads(content)
        expires_s = fields["expires_s"]
        return ConversionRecord(
            key=key,
            made_s=float(fields["made_s"]),
            expires_s=None if expires_s is None else float(expires_s),
            is_claim=bool(fields.get("is_claim", False)),
        )
    except (ValueError, KeyError, TypeError):
        return None
