"""Make orders from manifests and filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from headrace.cli.show.progress import count_progress
from headrace.order import (
    MixtureOrder,
    MixtureSpec,
    Order,
    OrderSpec,
    ShardTable,
    Subset,
    SubsetMixtureOrder,
    SubsetOrder,
    mixture_order_of,
    order_of,
    table_of,
)
from headrace.storage import OpenDataset, SourceOptions, kept_bits, make_filter, open_dataset


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The shard tables of datasets.

    Attributes:
        tables: For each dataset, the shard table of the kept samples.
        fingerprints: The fingerprint of each.
        kept: The samples that a filter keeps in each; None for all.
    """

    tables: list[ShardTable]
    fingerprints: list[str]
    kept: list[Subset | None]

    def order(self, spec: OrderSpec) -> Order | SubsetOrder:
        """Return the order of the single dataset."""
        return order_of(spec, self.tables[0], self.kept[0])

    def mixture(self, spec: MixtureSpec) -> MixtureOrder | SubsetMixtureOrder:
        """Return the order of a mixture of all datasets."""
        return mixture_order_of(spec, self.tables, self.kept)


def read_tables(
    urls: Sequence[str], wheres: Sequence[str] = (), *, missing_as_null: bool = False
) -> Tables:
    """Read manifests, and the columns that filters need.

    Args:
        urls: The URLs of the datasets.
        wheres: A filter for each dataset, empty for none; or an empty list for no filters.
        missing_as_null: Whether files may lack columns, as `SourceOptions` has it.
    """
    options = SourceOptions(missing_as_null=missing_as_null)
    found = Tables([], [], [])
    for url, where in zip(urls, wheres or [""] * len(urls), strict=True):
        with open_dataset(url, source_options=options) as dataset:
            table = table_of(dataset.stretches())
            kept = kept_of(dataset, where) if where else None
            found.tables.append(table if kept is None else kept.table(table))
            found.fingerprints.append(dataset.fingerprint)
            found.kept.append(kept)
    return found


def kept_of(dataset: OpenDataset, where: str) -> Subset:
    """Return the samples that a filter keeps, and show progress.

    Raises:
        BadArgumentError: The filter cannot be parsed.
        UsageError: The filter keeps nothing.
    """
    filtered = make_filter(where, dataset.schema)
    with count_progress("filtering", total=dataset.sample_count, unit="samples") as progress:
        kept = Subset(kept_bits(dataset, filtered, progress=progress), dataset.sample_count)
    if not kept.count:
        raise click.UsageError(
            f"--where keeps none of the {dataset.sample_count:,} samples of {dataset.url}."
        )
    return kept
