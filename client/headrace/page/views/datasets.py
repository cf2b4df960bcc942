"""Views of datasets: the list, the contents, and the changes between two versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from headrace.errors import HeadraceError
from headrace.page.data.sampled import histogram, spread_part
from headrace.page.data.values import Column, columns_of
from headrace.page.site import Ask
from headrace.page.views.asked import chosen, column_at, filter_of
from headrace.storage import Dataset, OpenDataset

_A_PAGE: Final = 20
_MOST_COLUMNS: Final = 500
_MOST_SHARDS: Final = 200
MOST_COMPARED: Final = 1 << 18
"""The most blocks of a version to compare with those of another: some tenths of a second."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """Counts of a dataset."""

    fingerprint: str
    samples: int
    shards: int
    blocks: int
    raw_bytes: int
    stored_bytes: int


def datasets(ask: Ask) -> Response:
    """Show the datasets that the caller may read."""
    names = ask.site.library.names(ask.caller)
    at = ask.number("at", 0, high=max(len(names) - 1, 0))
    rows = [(name, *_seen(ask, name)) for name in names[at : at + _A_PAGE]]
    return ask.html(
        "datasets.html", rows=rows, at=at, count=len(names), page=_A_PAGE, title="Datasets"
    )


def _seen(ask: Ask, name: str) -> tuple[_Facts | None, str]:
    try:
        with ask.site.library.opened(ask.caller, name) as dataset:
            return _facts(dataset), ""
    except HeadraceError as error:
        return None, ask.site.told(error).message


def dataset(ask: Ask) -> Response:
    """Show the contents of a dataset: columns, sizes, shards."""
    with chosen(ask) as (name, opened):
        counts, sizes = opened.shard_sample_counts, opened.shard_raw_bytes
        columns = columns_of(opened.schema)
        return ask.html(
            "dataset.html",
            title=name,
            name=name,
            facts=_facts(opened),
            url=opened.url if ask.site.access.is_open else "",
            columns=columns[:_MOST_COLUMNS],
            column_count=len(columns),
            shards=list(
                zip(counts[:_MOST_SHARDS].tolist(), sizes[:_MOST_SHARDS].tolist(), strict=True)
            ),
        )


def column(ask: Ask) -> Response:
    """Show how the values of a column are distributed, in a part of the dataset."""
    with chosen(ask) as (name, opened):
        number, found = column_at(ask, columns_of(opened.schema))
        part = spread_part(opened)
        kept = filter_of(ask, opened)
        return ask.html(
            "column.html",
            title=f"{name}: {found.name}",
            name=name,
            column=found,
            number=number,
            part=part,
            histogram=histogram(ask.site.library, opened, part, found, kept),
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """A change between two versions."""

    what: str
    before: str
    after: str


def versions(ask: Ask) -> Response:
    """Show the versions of a dataset, and what changed between two of them."""
    name = ask.path["name"]
    found = ask.site.library.versions(ask.caller, name)
    known = {version.fingerprint for version in found}
    old, new = ask.query["old"], ask.query["new"]
    if not old and not new and len(found) > 1:
        old, new = found[1].fingerprint, found[0].fingerprint
    changes: list[_Change] | None = None
    if old in known and new in known:
        library = ask.site.library
        with (
            library.opened(ask.caller, name, old) as before,
            library.opened(ask.caller, name, new) as after,
        ):
            changes = _changes(before, after)
    return ask.html(
        "versions.html",
        title=f"{name}: versions",
        name=name,
        versions=found,
        old=old,
        new=new,
        changes=changes,
        most=MOST_COMPARED,
    )


def _changes(before: OpenDataset, after: OpenDataset) -> list[_Change]:
    changes = [
        _Change(what, f"{old:,}", f"{new:,}")
        for what, old, new in (
            ("samples", before.sample_count, after.sample_count),
            ("shards", before.shard_count, after.shard_count),
            ("blocks", before.block_count, after.block_count),
            ("raw bytes", before.raw_bytes, after.raw_bytes),
            ("stored bytes", before.stored_bytes, after.stored_bytes),
        )
        if old != new
    ]
    old_columns = {one.name: one for one in columns_of(before.schema)}
    new_columns = {one.name: one for one in columns_of(after.schema)}
    for name in {**old_columns, **new_columns}:
        was, now = _described(old_columns.get(name)), _described(new_columns.get(name))
        if was != now:
            changes.append(_Change(f"column {name}", was, now))
    return changes + _shared(before, after)


def _described(column: Column | None) -> str:
    if column is None:
        return "none"
    nulls = ", may be null" if column.is_nullable else ""
    classes = "" if column.classes is None else f", {len(column.classes):,} classes"
    return f"{column.type}{nulls}{classes}"


def _shared(before: OpenDataset, after: OpenDataset) -> list[_Change]:
    """Return how many samples are in blocks that both versions have, judging by checksums."""
    if not (isinstance(before, Dataset) and isinstance(after, Dataset)):
        return []
    (old, old_samples), (new, new_samples) = _blocks(before), _blocks(after)
    count = min(old.size, new.size)
    differs = np.flatnonzero(old[:count] != new[:count])
    same = int(old_samples[: differs[0] if differs.size else count].sum())
    kept = [int(old_samples[np.isin(old, new)].sum()), int(new_samples[np.isin(new, old)].sum())]
    looked = [int(old_samples.sum()), int(new_samples.sum())]
    return [
        _Change("first samples, in the same blocks", *_parts([same, same], looked)),
        _Change("samples in blocks that both versions have", *_parts(kept, looked)),
    ]


def _parts(counts: Sequence[int], of: Sequence[int]) -> list[str]:
    return [f"{count:,} of {all_of:,}" for count, all_of in zip(counts, of, strict=True)]


def _blocks(dataset: Dataset) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the checksum and sample count of the first `MOST_COMPARED` blocks of a version."""
    count = min(dataset.block_count, MOST_COMPARED)
    blocks = np.arange(count)
    end = dataset.block_sample_range(count - 1)[1] if count else 0
    samples = np.diff(dataset.block_first_samples(blocks), append=end)
    return dataset.block_checksums(blocks), samples


def _facts(opened: OpenDataset) -> _Facts:
    return _Facts(
        opened.fingerprint,
        opened.sample_count,
        opened.shard_count,
        opened.block_count,
        opened.raw_bytes,
        opened.stored_bytes,
    )


__all__: Sequence[str] = ["column", "dataset", "datasets", "versions"]
