"""Volumes of Unity Catalog from machines that do not mount them: where they lie, and their keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ConfigurationError, NotADatasetError, StoreRefusedError
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
    """

    url: str
    identity: str

    @property
    def title(self) -> str:
        """The catalog."""
        return TITLE

    def __call__(self) -> Grant:
        """Ask for credentials to read, by the volume's id."""
        from databricks.sdk.service.catalog import VolumeOperation  # noqa: PLC0415 - an extra

        try:
            answer = asked(
                lambda client: (
                    client.temporary_volume_credentials.generate_temporary_volume_credentials(
                        volume_id=self.identity, operation=VolumeOperation.READ_VOLUME
                    )
                ),
                about=self.url,
            )
        except NotADatasetError as error:
            raise StoreRefusedError(f"no credentials: {error.message}", url=self.url) from error
        return keys_of_s3(answer, about=self.url)


_known: dict[str, tuple[str, Lease]] = {}
_lock = threading.Lock()


def open_volume(
    path: str, *, options: StoreOptions, open_at: Callable[[str, StoreOptions], Store]
) -> Store:
    """Open a folder of a volume for reading; stores of one volume share its credentials.

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
        location, lease = _known.get(volume) or _found(volume)
        _known[volume] = location, lease
    url = f"{location}/{rest}".rstrip("/")
    if options.has_credentials or not url.startswith(_S3):
        return open_at(url, options)
    return open_at(url, replace(options, lease=lease))


def _found(volume: str) -> tuple[str, Lease]:
    url, name = f"dbfs:{volume}", ".".join(volume.split("/")[2:])
    found: Any = asked(lambda client: client.volumes.read(name), about=url)
    if not found.storage_location or not found.volume_id:
        raise ConfigurationError(f"{TITLE} does not say where {url} lies", url=url)
    location = str(found.storage_location).rstrip("/")
    return location, Lease(VolumeVendor(url, str(found.volume_id)))
