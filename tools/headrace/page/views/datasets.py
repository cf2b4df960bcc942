"""Views of datasets: their list, their contents, and their versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from headrace.errors import HeadraceError
from headrace.page.data.partial_reads import histogram, spread_part
from headrace.page.data.values import Column, columns_of
from headrace.page.site import ViewRequest
from headrace.page.views.query import column_at, filter_of, open_requested
from headrace.storage import Dataset, OpenDataset

_PAGE_SIZE: Final = 20
_MAX_COLUMNS: Final = 500
_MAX_SHARDS: Final = 200
MAX_COMPARED: Final = 1 << 18
"""The maximum number of blocks of a version to compare, which takes some tenths of a second."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """Counts of a dataset."""

    fingerprint: str
    samples: int
    shards: int
    blocks: int
    raw_bytes: int
    stored_bytes: int


def datasets(request: ViewRequest) -> Response:
    """Show the datasets that the caller may read."""
    names = request.site.library.names(request.caller)
    at = request.number("at", 0, high=max(len(names) - 1, 0))
    rows = [(name, *_facts_or_problem(request, name)) for name in names[at : at + _PAGE_SIZE]]
    return request.html(
        "datasets.html", rows=rows, at=at, count=len(names), page=_PAGE_SIZE, title="Datasets"
    )


def _facts_or_problem(request: ViewRequest, name: str) -> tuple[_Facts | None, str]:
    try:
        with request.site.library.opened(request.caller, name) as dataset:
            return _facts(dataset), ""
    except HeadraceError as error:
        return None, request.site.without_urls(error).message


def dataset(request: ViewRequest) -> Response:
    """Show the columns, sizes and shards of a dataset."""
    with open_requested(request) as (name, opened):
        counts, sizes = opened.shard_sample_counts, opened.shard_raw_bytes
        columns = columns_of(opened.schema)
        return request.html(
            "dataset.html",
            title=name,
            name=name,
            facts=_facts(opened),
            url=opened.url if request.site.access.is_open else "",
            columns=columns[:_MAX_COLUMNS],
            column_count=len(columns),
            shards=list(
                zip(counts[:_MAX_SHARDS].tolist(), sizes[:_MAX_SHARDS].tolist(), strict=True)
            ),
        )


def column(request: ViewRequest) -> Response:
    """Show a histogram of a column, from a part of the dataset."""
    with open_requested(request) as (name, opened):
        number, found = column_at(request, columns_of(opened.schema))
        part = spread_part(opened)
        kept = filter_of(request, opened)
        return request.html(
            "column.html",
            title=f"{name}: {found.name}",
            name=name,
            column=found,
            number=number,
            part=part,
            histogram=histogram(request.site.library, opened, part, found, kept),
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """A change between two versions."""

    what: str
    before: str
    after: str


def versions(request: ViewRequest) -> Response:
    """Show the versions of a dataset, and the changes between two of them."""
    name = request.path["name"]
    found = request.site.library.versions(request.caller, name)
    known = {version.fingerprint for version in found}
    old, new = request.query["old"], request.query["new"]
    if not old and not new and len(found) > 1:
        old, new = found[1].fingerprint, found[0].fingerprint
    changes: list[_Change] | None = None
    if old in known and new in known:
        library = request.site.library
        with (
            library.opened(request.caller, name, old) as before,
            library.opened(request.caller, name, new) as after,
        ):
            changes = _changes(before, after)
    return request.html(
        "versions.html",
        title=f"{name}: versions",
        name=name,
        versions=found,
        old=old,
        new=new,
        changes=changes,
        most=MAX_COMPARED,
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
    """Return how many samples are in blocks with the same checksums in both versions."""
    if not (isinstance(before, Dataset) and isinstance(after, Dataset)):
        return []
    (old, old_samples), (new, new_samples) = _blocks(before), _blocks(after)
    count = min(old.size, new.size)
    differs = np.flatnonzero(old[:count] != new[:count])
    same = int(old_samples[: differs[0] if differs.size else count].sum())
    kept = [int(old_samples[np.isin(old, new)].sum()), int(new_samples[np.isin(new, old)].sum())]
    totals = [int(old_samples.sum()), int(new_samples.sum())]
    return [
        _Change("leading samples in the same blocks", *_parts([same, same], totals)),
        _Change("samples in blocks that both versions have", *_parts(kept, totals)),
    ]


def _parts(counts: Sequence[int], of: Sequence[int]) -> list[str]:
    return [f"{count:,} of {all_of:,}" for count, all_of in zip(counts, of, strict=True)]


def _blocks(dataset: Dataset) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the checksums and sample counts of the first `MAX_COMPARED` blocks of a version."""
    count = min(dataset.block_count, MAX_COMPARED)
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
