"""Choose a snapshot of a table, and say what is left when it has gone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.errors import NotADatasetError
from headrace.storage.iceberg.table_name import TableName
from headrace.storage.parquet.table_dataset import version_in

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_SHOWN = 5
KEEP = (
    "a run needs its snapshot for as long as it lasts: set history.expire.max-snapshot-age-ms of "
    "the table to more than that, or tag the snapshot before (ALTER TABLE … CREATE TAG run AS OF "
    "VERSION … RETAIN 30 DAYS)"
)


def snapshot_of(metadata: TableMetadata, name: TableName, fingerprint: str | None) -> Snapshot:
    """Return the snapshot that a fingerprint or a reference names, or the current one.

    Raises:
        NotADatasetError: There is no such snapshot, or no longer; or the table is empty.
    """
    if fingerprint is not None:
        return _by_id(metadata, name, version_in(fingerprint, url=name.url))
    if name.reference is None:
        current = metadata.current_snapshot()
        if current is None:
            raise NotADatasetError(
                f"{name.url} has no snapshot yet, but a dataset needs at least one sample: write "
                "to the table first",
                url=name.url,
            )
        return current
    found = metadata.snapshot_by_name(name.reference)
    if found is not None:
        return found
    if name.reference.isdecimal():
        return _by_id(metadata, name, int(name.reference))
    raise NotADatasetError(
        f"{name.url} has no branch or tag {name.reference!r}; it has "
        f"{', '.join(sorted(metadata.refs)) or 'none'}",
        url=name.url,
    )


def gone(metadata: TableMetadata, name: TableName, snapshot: int) -> str:
    """Return what there is in place of a snapshot, and how to keep one."""
    left = sorted(metadata.snapshots, key=lambda one: one.timestamp_ms, reverse=True)
    shown = ", ".join(f"{one.snapshot_id} of {_time(one)}" for one in left[:_SHOWN])
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return (
        f"snapshot {snapshot} of {name.url} is not in the table's metadata, so it has expired or "
        f"is of another table; left are {shown or 'none'}{more}; {KEEP}"
    )


def schemas_of(metadata: TableMetadata, snapshot: Snapshot, name: TableName) -> list[Schema]:
    """Return the schemas that a snapshot may be read with, the one that is meant first.

    A tag or the id of a snapshot is read with the schema of its time, a branch and the current
    snapshot with the table's schema now. A run whose table was altered since finds its own among
    the others.
    """
    now = metadata.schema()
    own = next((one for one in metadata.schemas if one.schema_id == snapshot.schema_id), now)
    is_moving = name.reference is None or (
        name.reference in metadata.refs
        and metadata.refs[name.reference].snapshot_ref_type == "branch"
    )
    first, second = (now, own) if is_moving else (own, now)
    others = sorted(metadata.schemas, key=lambda one: one.schema_id, reverse=True)
    chosen = {one.schema_id: one for one in (first, second, *others)}
    return list(chosen.values())


def _by_id(metadata: TableMetadata, name: TableName, snapshot: int) -> Snapshot:
    found = metadata.snapshot_by_id(snapshot)
    if found is None:
        raise NotADatasetError(gone(metadata, name, snapshot), url=name.url)
    return found


def _time(snapshot: Snapshot) -> str:
    stamp = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return f"{stamp:%Y-%m-%d %H:%M} UTC"
