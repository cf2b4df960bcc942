"""Open the store of a URL."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import BadArgumentError, ConfigurationError
from headrace.storage.store.local.local_store import LocalStore
from headrace.storage.store.name_store import NameStore
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import Store

NAME_SCHEMES = ("iceberg", "uc")
"""Schemes of names that catalogs give; a source asks the catalog."""

_VOLUME_PARTS = 5  # "", Volumes, catalog, schema, volume


def open_store(url: str, *, options: StoreOptions | None = None) -> Store:
    """Open the store of ``url``, without sending a request to it.

    Args:
        url: A local path, ``file://``, ``s3://bucket/prefix``, or any URL that fsspec knows; or
            ``dbfs:/Volumes/...``, which is the path ``/Volumes/...`` on Databricks, and elsewhere
            is read where Unity Catalog says that the volume lies; or
            ``hf://datasets/OWNER/NAME``, which is pinned to the commit that it means now.
        options: Endpoint, credentials, timeouts and retries; `None` for `StoreOptions()`.

    Raises:
        BadArgumentError: The URL has no root, or its scheme is unknown or not installed.
        ConfigurationError: It is below a mount of Databricks that is not there.

    Examples:
        >>> store = open_store("notes")
        >>> store.write("a/note.txt", b"hello")
        >>> list(store.list())
        ['a/note.txt']
        >>> store.read("a/note.txt", offset=1, length=3)
        b'ell'
    """
    chosen = options or StoreOptions()
    try:
        url = _mounted(url)
    except ConfigurationError as error:
        return _elsewhere(url, chosen, error)
    scheme = urlsplit(url).scheme if "://" in url else "file"
    if not url:
        raise BadArgumentError(
            "the URL is empty, expected a path or a URL such as s3://bucket/name"
        )
    if (one_slash := re.match(r"(\w{2,}):/(?!/)", url)) is not None:
        raise BadArgumentError(f"{url!r} has one slash; expected {one_slash[1]}://…", field="url")
    if scheme in {"http", "https"} and not urlsplit(url).hostname:
        raise BadArgumentError(f"{url!r} names no host; expected {scheme}://host/…", field="url")
    if scheme in NAME_SCHEMES:
        return NameStore(url)
    if scheme in {"file", "local"}:
        return LocalStore(url)
    if scheme in {"s3", "s3a", "s3n"}:
        from headrace.storage.store.s3.s3_store import S3Store  # noqa: PLC0415 - of an extra

        return S3Store(url, options=chosen)
    if url.startswith("hf://datasets/"):
        from headrace.storage.store.foreign.hub import open_hub  # noqa: PLC0415 - of an extra

        return open_hub(url, options=chosen)
    from headrace.storage.store.foreign.fsspec_store import FsspecStore  # noqa: PLC0415 - of an extra

    return FsspecStore(url, options=chosen)


def _elsewhere(url: str, options: StoreOptions, why: ConfigurationError) -> Store:
    """Open a volume of Unity Catalog from a machine that does not mount it."""
    path = url.removeprefix("dbfs://").removeprefix("dbfs:")
    if not path.startswith("/Volumes/") or len(path.rstrip("/").split("/")) < _VOLUME_PARTS:
        raise why
    from headrace.storage.store.databricks.volumes import open_volume  # noqa: PLC0415 - seldom needed

    def open_at(place: str, reach: StoreOptions) -> Store:
        return open_store(place, options=reach)

    try:
        return open_volume(path, options=options, open_at=open_at)
    except ConfigurationError as error:
        raise ConfigurationError(f"{why.message}; or {error.message}", url=url) from error


def _mounted(url: str) -> str:
    """Return the path at which Databricks mounts a ``dbfs:`` path, or the URL unchanged.

    Its machines mount volumes of Unity Catalog at ``/Volumes`` and the rest at ``/dbfs``. URLs with
    a host, ``dbfs://host/...``, belong to fsspec.

    Raises:
        ConfigurationError: The mount is not there; what is written below it would lie on the disk
            of this machine.
    """
    path = url.removeprefix("dbfs://") if url.startswith("dbfs:///") else url.removeprefix("dbfs:")
    if path == url or path.startswith("//"):
        return url
    mount = folder = "/dbfs"
    if path.startswith("/Volumes/"):
        mount, folder = "/Volumes", "/".join(path.split("/")[:_VOLUME_PARTS])
    else:
        path = f"/dbfs{path}"
    # A folder of that name on the disk may be what an earlier mistake has left.
    if not Path(mount).is_mount() or not Path(folder).is_dir():
        raise ConfigurationError(
            f"{url} is {path} on the machines of Databricks, and {folder} is not mounted here: "
            "this machine is not one of them, or there is no such volume; give another URL, or a "
            "path without dbfs: for a folder of this machine"
        )
    return path
