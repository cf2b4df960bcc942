"""Volumes of Unity Catalog from machines that do not mount them: where they lie, and their keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.errors import ConfigurationError, NotADatasetError, StoreRefusedError
from headrace.storage.store.databricks.volume_store import VolumeStore
from headrace.storage.store.databricks.workspace import TITLE, asked, keys_of_s3
from headrace.storage.store.lease import Grant, Lease
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import Store

_PARTS = 5  # "", Volumes, catalog, schema, volume
_S3 = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True, slots=True)
class VolumeVendor:
    """Gives the credentials of a volume; see `headrace.storage.store.lease.Vendor`.

    Attributes:
        url: The URL of the volume.
        identity: Its id.
        operation: For what, by its name in the API.
    """

    url: str
    identity: str
    operation: Literal["READ_VOLUME", "WRITE_VOLUME"] = "READ_VOLUME"

    @property
    def title(self) -> str:
        """The catalog."""
        return TITLE

    def __call__(self) -> Grant:
        """Ask for credentials, by the volume's id."""
        from databricks.sdk.service.catalog import VolumeOperation  # noqa: PLC0415 - an extra

        try:
            answer = asked(
                lambda client: (
                    client.temporary_volume_credentials.generate_temporary_volume_credentials(
                        volume_id=self.identity, operation=VolumeOperation(self.operation)
                    )
                ),
                about=self.url,
            )
        except NotADatasetError as error:
            raise StoreRefusedError(f"no credentials: {error.message}", url=self.url) from error
        return keys_of_s3(answer, about=self.url)


@dataclass(frozen=True, slots=True)
class _Volume:
    """Where a volume lies, and its keys."""

    location: str
    reading: Lease
    writing: Lease


_known: dict[str, _Volume] = {}
_lock = threading.Lock()


def open_volume(
    path: str, *, options: StoreOptions, open_at: Callable[[str, StoreOptions], Store]
) -> Store:
    """Open a folder of a volume; stores of one volume share its credentials.

    Args:
        path: ``/Volumes/catalog/schema/volume``, and what lies below.
        options: The operator's options; keys in them come before those of the catalog.
        open_at: Opens the store of a URL.

    Raises:
        ConfigurationError: Nobody can be asked, or the volume is not in S3.
        NotADatasetError: There is no such volume.
        StoreRefusedError: The catalog refuses.
        StoreUnavailableError: It cannot be reached.
    """
    parts = path.rstrip("/").split("/")
    volume, rest = "/".join(parts[:_PARTS]), "/".join(parts[_PARTS:])
    with _lock:
        known = _known[volume] = _known.get(volume) or _found(volume)
    url = f"{known.location}/{rest}".rstrip("/")
    if options.has_credentials or not url.startswith(_S3):
        return open_at(url, options)
    reading = open_at(url, replace(options, lease=known.reading))
    return VolumeStore(
        f"dbfs:{path}", reading, lambda: open_at(url, replace(options, lease=known.writing))
    )


def _found(volume: str) -> _Volume:
    url, name = f"dbfs:{volume}", ".".join(volume.split("/")[2:])
    found: Any = asked(lambda client: client.volumes.read(name), about=url)
    if not found.storage_location or not found.volume_id:
        raise ConfigurationError(f"{TITLE} does not say where {url} lies", url=url)
    reading = VolumeVendor(url, str(found.volume_id))
    writing = replace(reading, operation="WRITE_VOLUME")
    return _Volume(str(found.storage_location).rstrip("/"), Lease(reading), Lease(writing))
