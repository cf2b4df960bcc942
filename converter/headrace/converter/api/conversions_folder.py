"""Manage a folder of conversions: find them, know when they expire, and remove them.

Each conversion is a dataset in a folder named by its key, with a small record beside the folders.
The record is written last and removed first, so an existing record belongs to a whole dataset.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import HeadraceError, ObjectNotFoundError
from headrace.storage import Store, StoreOptions, open_store

_RECORD = re.compile(r"conversions/([0-9a-f]{32})\.json")
_POINTER = "headrace.json"


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """When a conversion was made, and when it expires.

    Attributes:
        key: The key from `plan_key`.
        made_s: Seconds since 1970.
        expires_s: Seconds since 1970 after which it is not used, or `None` for never.
    """

    key: str
    made_s: float
    expires_s: float | None

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
            store.write(_name_of(record.key), json.dumps(asdict(record)).encode())

    def remove(self, key: str) -> None:
        """Remove a conversion; a missing one is not an error.

        Raises:
            StoreRefusedError: The store refuses.
            StoreUnavailableError: The store cannot be reached.
        """
        with contextlib.closing(self._open(self._url)) as store:
            store.delete(_name_of(key))
        with contextlib.closing(self._open(self.url_of(key))) as store:
            store.delete(_POINTER)  # from now on it is no dataset, and never an incomplete one
            for name in list(store.list()):
                store.delete(name)
            # A local directory would remain, with its lock.
            shutil.rmtree(Path(store.url), ignore_errors=True)

    def remove_expired(self, now_s: float) -> None:
        """Remove expired conversions, as far as the store allows."""
        with contextlib.suppress(HeadraceError):
            for record in list(self._records()):
                if record.is_expired(now_s):
                    self.remove(record.key)

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


def _read(store: Store, key: str) -> ConversionRecord | None:
    try:
        fields = json.loads(store.read(_name_of(key)))
        expires_s = fields["expires_s"]
        return ConversionRecord(
            key=key,
            made_s=float(fields["made_s"]),
            expires_s=None if expires_s is None else float(expires_s),
        )
    except (ObjectNotFoundError, ValueError, KeyError, TypeError):
        return None
