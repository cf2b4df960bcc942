"""The files of a table, also those that its metadata names by URLs below prefixes of the operator.

Whoever may write a table could name any object that its readers may read. So files elsewhere are
found only below prefixes that the operator configures; requests and datasets name none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.errors import BadArgumentError
from headrace.storage.store.name_store import NameStore
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import ObjectEntry, Store, Version

_S3 = re.compile(r"s3[an]://")
_FILE = re.compile(r"file:(//)?(?=/)")


def normal(location: str) -> str:
    """Return a URL with one scheme for S3, and none for files of this machine."""
    return _FILE.sub("", _S3.sub("s3://", location)).rstrip("/")


def outer_name(url: str, prefixes: Sequence[str]) -> str | None:
    """Return the name of a file below one of the prefixes in an `OuterStore`, or `None`."""
    path = normal(url)
    inside = any(path.startswith(f"{normal(prefix)}/") for prefix in prefixes)
    name = _name(path)
    return name if inside and not {"", ".", ".."} & set(name.split("/")) else None


def with_outer(store: Store, prefixes: Sequence[str], *, options: StoreOptions) -> Store:
    """Return a store that also has the files below prefixes, by their `outer_name`.

    Args:
        store: The store of the table; closed with the result, and if this raises.
        prefixes: URLs of folders; without any, the store itself is returned.
        options: The options of their stores.

    Raises:
        HeadraceError: A store cannot be opened.
    """
    if not prefixes:
        return store
    outer: dict[str, Store] = {}
    try:
        for prefix in prefixes:
            outer[f"{_name(normal(prefix))}/"] = open_store(normal(prefix), options=options)
    except BaseException:
        for each in (store, *outer.values()):
            each.close()
        raise
    return OuterStore(store, outer)


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that is no place, or as wide as a whole kind of store.

    Raises:
        BadArgumentError: It is.
    """
    path = normal(prefix)
    if not path or path.endswith(":") or not (path.startswith("/") or "://" in path):
        raise BadArgumentError(
            f"table_prefixes has {prefix[:200]!r}, expected URLs of folders or buckets, such as "
            "s3://bucket/warehouse, or absolute paths",
            field="table_prefixes",
        )


class OuterStore(NameStore):
    """Files of a store, and of others by names that begin with what they are below.

    Args:
        inner: The store of the table.
        outer: Other stores by what the names of their files begin with.
    """

    def __init__(self, inner: Store, outer: Mapping[str, Store]) -> None:
        super().__init__(inner.url)
        self.url = inner.url
        self._inner = inner
        self._outer = outer

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        store, own = self._place(name)
        return store.read(own, offset=offset, length=length)

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        store, own = self._place(name)
        return store.read_versioned(own)

    def list(self, prefix: str = "") -> Iterator[str]:
        return self._inner.list(prefix)

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        return self._inner.list_entries(prefix)

    def entry(self, name: str) -> ObjectEntry | None:
        store, own = self._place(name)
        found = store.entry(own)
        return None if found is None else replace(found, name=name)

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        store, own = self._place(entry.name)
        return store.read_entry(replace(entry, name=own), offset=offset, length=length)

    def close(self) -> None:
        for each in (self._inner, *self._outer.values()):
            each.close()

    def _place(self, name: str) -> tuple[Store, str]:
        for start, store in self._outer.items():
            if name.startswith(start):
                return store, name.removeprefix(start)
        return self._inner, name


def _name(path: str) -> str:
    return path.replace("://", ":/") if "://" in path else f"file:{path}"
