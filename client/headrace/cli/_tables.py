"""Shard tables out of manifests: all that the order of a dataset needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.order import ShardTable


def read_tables(urls: Sequence[str]) -> tuple[list[ShardTable], list[str]]:
    """Return what the order needs of each dataset, and their fingerprints."""
    from headrace.order import table_of  # noqa: PLC0415
    from headrace.storage import open_dataset  # noqa: PLC0415 - needs the [storage] extra

    tables, fingerprints = [], []
    for url in urls:
        with open_dataset(url) as dataset:
            tables.append(table_of(dataset.stretches()))
            fingerprints.append(dataset.fingerprint)
    return tables, fingerprints
