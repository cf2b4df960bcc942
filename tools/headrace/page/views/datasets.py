"""Views of datasets: their list, an overview of each, its columns and its versions."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from headrace.errors import HeadraceError
from headrace.page.data.partial_reads import Histogram, histogram, spread_part
from headrace.page.data.samples import rows_of
from headrace.page.data.values import Column, columns_of
from headrace.page.site import ViewRequest
from headrace.page.views.live import rates_by_dataset
from headrace.page.views.query import column_at, filter_of, open_requested
from headrace.storage import Dataset, OpenDataset

_PAGE_SIZE: Final = 24
_MAX_SHARDS: Final = 200
_MAX_COLUMNS: Final = 60
_OVERVIEW_BYTES: Final = 16 << 20
"""Of an overview, which counts all columns."""
_PREVIEW_BYTES: Final = 16 << 20
"""The largest block that is read for the card of a dataset."""
_THUMBS: Final = 3
_FIELDS: Final = 5
MAX_COMPARED: Final = 1 << 18
"""The maximum number of blocks of a version to compare, which takes some tenths of a second."""


_COUNTS: Final = ("sample_count", "shard_count", "block_count", "raw_bytes", "stored_bytes")
_Facts = dict[str, Any]


def datasets(request: ViewRequest) -> Response:
    """Show the datasets that the caller may read."""
    site, caller = request.site, request.caller
    names = site.library.names(caller)
    at = request.number("at", 0, high=max(len(names) - 1, 0))
    rows = [(name, *_facts_or_problem(request, name)) for name in names[at : at + _PAGE_SIZE]]
    rates = site.watch.glance(lambda seen: rates_by_dataset(seen, caller)) if site.watch else {}
    return request.html(
        "datasets.html", rows=rows, rates=rates, at=at, count=len(names), page=_PAGE_SIZE
    )


def preview(request: ViewRequest) -> Response:
    """Show the first images of a dataset, or the first values of its first sample."""
    with open_requested(request) as opened:
        sizes = opened.block_raw_bytes(np.arange(min(opened.block_count, 1)))
        count = min(_THUMBS, opened.sample_count) if sizes.sum() <= _PREVIEW_BYTES else 0
        rows = rows_of(request.site.library, opened, range(count))
        columns = columns_of(opened.schema)
        values = [one.shown(rows[0].column(one.name)[0]) for one in columns] if rows else []
        image = next((at for at, one in enumerate(values) if one.kind == "image"), None)
        return request.html(
            "preview.html",
            fingerprint=opened.fingerprint,
            is_empty=not opened.sample_count,
            image=image,
            thumbs=range(count),
            values=values[:_FIELDS],
        )


def _facts_or_problem(request: ViewRequest, name: str) -> tuple[_Facts | None, str]:
    try:
        with request.site.library.opened(request.caller, name) as dataset:
            return _facts(dataset), ""
    except HeadraceError as error:
        return None, request.site.without_urls(error).message


def dataset(request: ViewRequest) -> Response:
    """Show what a dataset is, and how to read it."""
    with open_requested(request) as opened:
        counts, sizes = opened.shard_sample_counts, opened.shard_raw_bytes
        return request.html(
            "dataset.html",
            facts=_facts(opened),
            url=opened.url if request.site.access.is_open else "",
            columns=columns_of(opened.schema)[:_MAX_COLUMNS],
            shards=list(
                zip(counts[:_MAX_SHARDS].tolist(), sizes[:_MAX_SHARDS].tolist(), strict=True)
            ),
        )


def columns(request: ViewRequest) -> Response:
    """Show a histogram of each column, from a part of the dataset."""
    with open_requested(request) as opened:
        every = columns_of(opened.schema)
        part = spread_part(opened, _OVERVIEW_BYTES)

        def count() -> list[Histogram]:
            library = request.site.library
            return [histogram(library, opened, part, one, None) for one in every[:_MAX_COLUMNS]]

        found = request.site.histograms.get(opened.fingerprint, count)
        return request.html(
            "columns.html",
            columns=list(zip(every, found, strict=False)),
            column_count=len(every),
            classes=next(
                (pair for pair in zip(every, found, strict=False) if pair[0].classes), None
            ),
            part=part,
        )


def column(request: ViewRequest) -> Response:
    """Show a histogram of a column, from a part of the dataset."""
    with open_requested(request) as opened:
        number, found = column_at(request, columns_of(opened.schema))
        part = spread_part(opened)
        kept = filter_of(request, opened)
        return request.html(
            "column.html",
            column=found,
            number=number,
            part=part,
            histogram=histogram(request.site.library, opened, part, found, kept),
        )


_Change = tuple[str, str, str]
"""What changed, and what it was before and after."""


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
        "versions.html", versions=found, old=old, new=new, changes=changes, most=MAX_COMPARED
    )


def _changes(before: OpenDataset, after: OpenDataset) -> list[_Change]:
    changes = [
        (what.replace("_", " "), f"{old:,}", f"{new:,}")
        for what in _COUNTS
        if (old := getattr(before, what)) != (new := getattr(after, what))
    ]
    old_columns = {one.name: one for one in columns_of(before.schema)}
    new_columns = {one.name: one for one in columns_of(after.schema)}
    for name in {**old_columns, **new_columns}:
        was, now = _described(old_columns.get(name)), _described(new_columns.get(name))
        if was != now:
            changes.append((f"column {name}", was, now))
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
    same = old_samples[: differs[0] if differs.size else count].sum()
    was, now = old_samples[np.isin(old, new)].sum(), new_samples[np.isin(new, old)].sum()
    of_old, of_new = f" of {old_samples.sum():,}", f" of {new_samples.sum():,}"
    return [
        ("leading samples in the same blocks", f"{same:,}{of_old}", f"{same:,}{of_new}"),
        ("samples in blocks that both versions have", f"{was:,}{of_old}", f"{now:,}{of_new}"),
    ]


def _blocks(dataset: Dataset) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the checksums and sample counts of the first `MAX_COMPARED` blocks of a version."""
    count = min(dataset.block_count, MAX_COMPARED)
    blocks = np.arange(count)
    end = dataset.block_sample_range(count - 1)[1] if count else 0
    samples = np.diff(dataset.block_first_samples(blocks), append=end)
    return dataset.block_checksums(blocks), samples


def _facts(opened: OpenDataset) -> _Facts:
    return {name: getattr(opened, name) for name in ("fingerprint", *_COUNTS)}
