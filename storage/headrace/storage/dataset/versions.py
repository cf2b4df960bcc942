"""Which versions of a dataset can be opened."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.arguments import split_source
from headrace.errors import ObjectNotFoundError, StoreRefusedError
from headrace.storage.dataset.pointer import IndexPointer
from headrace.storage.dataset.read_manifest import read_any_pointer
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import may_be_missing


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a dataset.

    Attributes:
        fingerprint: 32 hexadecimal digits; `open_dataset` takes it.
        created: Time of the commit, ISO 8601 in UTC.
        sample_count: Number of samples.
    """

    fingerprint: str
    created: str
    sample_count: int


def list_versions(url: str, *, options: StoreOptions | None = None) -> tuple[DatasetVersion, ...]:
    """Return the versions of the dataset at a URL, the current one last.

    Layouts that keep no list of versions have none.

    Args:
        url: A local path, ``s3://bucket/prefix``, and so on; or ``INDEX from SOURCE``.
        options: How to reach the store.

    Raises:
        ManifestCorruptError: ``headrace.json`` is damaged.
        StoreRefusedError: The store refused the request.
        StoreUnavailableError: The store cannot be reached.
    """
    store = open_store(split_source(url)[0], options=options)
    try:
        pointer, _ = read_any_pointer(store)
    except (ObjectNotFoundError, StoreRefusedError) as error:
        if not may_be_missing(error):
            raise
        return ()
    finally:
        store.close()
    entries = (pointer,) if isinstance(pointer, IndexPointer) else pointer.versions
    return tuple(
        DatasetVersion(entry.fingerprint, entry.created, entry.sample_count) for entry in entries
    )
