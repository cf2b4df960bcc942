"""Refuse to write a dataset where one of another kind is, since readers would see only one.

If a folder contains several kinds, `open_dataset` finds only one of them, so one dataset would
silently hide the other. This holds for every mode: appending does not add to another kind, and
overwriting does not remove its files.
"""

from __future__ import annotations

from headrace.errors import DatasetExistsError, ObjectNotFoundError, StoreRefusedError
from headrace.storage.source.kinds import MDS_INDEX_NAME, POINTER_NAME
from headrace.storage.source.listed_kinds import ListedKinds
from headrace.storage.store.store import Store, may_be_missing


def refuse_other_kinds(store: Store, mark: str, *, but: str | None = None) -> None:
    """Refuse a place that contains a dataset of another kind than the one to write.

    Args:
        store: The store to write to.
        mark: The file by which the new dataset will be recognized. If it already exists, other
            kinds are already hidden.
        but: A file, or the folder of files, that the new dataset shows and does not hide.

    Raises:
        DatasetExistsError: There is an MDS dataset, a headrace dataset, Parquet files, a Delta
            table or WebDataset tars.
    """
    found = _hiding_kind(store, mark)
    if found is None and not has_object(store, mark):
        found = _kind_by_names(store, but)
    if found is not None:
        raise DatasetExistsError(
            f"{store.url} contains {found}; {mark} beside it would hide it or be hidden by it, in "
            "any mode. Write elsewhere, or remove it first",
            url=store.url,
        )


def has_object(store: Store, name: str) -> bool:
    """Return whether an object exists and may be read, for all that the store tells."""
    try:
        store.read(name, length=1)
    except (ObjectNotFoundError, StoreRefusedError) as error:
        if not may_be_missing(error):
            raise
        return False
    return True


def _hiding_kind(store: Store, mark: str) -> str | None:
    """Return the kind of dataset that readers would find instead, if any."""
    if mark != POINTER_NAME and has_object(store, POINTER_NAME):
        return f"a headrace dataset ({POINTER_NAME})"
    return None


def _kind_by_names(store: Store, but: str | None) -> str | None:
    if has_object(store, MDS_INDEX_NAME):
        return f"a MosaicML Streaming dataset ({MDS_INDEX_NAME})"
    kinds = ListedKinds(store, but=but)
    if name := kinds.delta():
        return f"a Delta table ({name})"
    if name := kinds.parquet():
        return f"Parquet files ({name})"
    if name := kinds.tar():
        return f"WebDataset tars ({name})"
    return None
