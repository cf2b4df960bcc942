"""Open a dataset of any layout."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from headrace.arguments import split_source
from headrace.errors import BadArgumentError, NotADatasetError, StoreRefusedError
from headrace.storage.open.installed import sources
from headrace.storage.open.unfinished import unfinished_kind
from headrace.storage.source.kinds import refuse_absent
from headrace.storage.source.source import OpenDataset, Place, Source, SourceOptions
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions


def open_dataset(
    url: str,
    *,
    options: StoreOptions | None = None,
    fingerprint: str | None = None,
    source_options: SourceOptions | None = None,
) -> OpenDataset:
    """Open the dataset at a URL: its current version, or the one with ``fingerprint``.

    Args:
        url: A local path, ``s3://bucket/prefix``, and so on; ``INDEX from SOURCE`` for a stored
            index and the files that it is of.
        options: How to reach the store.
        fingerprint: 32 hexadecimal digits of a version that has not been removed.
        source_options: The source to use, and what each source may do.

    Raises:
        BadArgumentError: There is no source with the name in ``source_options``, or two are given.
        NotADatasetError: There is no dataset, or no such version.
        ManifestCorruptError: The manifest is damaged or of an unknown version.
        StoreRefusedError: The store refused the request.
        StoreUnavailableError: The store cannot be reached.

    Examples:
        >>> with open_dataset(url) as dataset:
        ...     print(dataset.sample_count, dataset.shard_count)
        ...     print(dataset.read_block(0).column("x").to_pylist())
        10 2
        [0, 1, 2, 3, 4]
    """
    url, chosen = index_options(url, source_options or SourceOptions())
    store_options = options or StoreOptions()
    candidates = sources("arrow" if chosen.index_of else chosen.source, url=url)
    place = Place(url, open_store(url, options=store_options), store_options)
    try:
        return _found(place, candidates).open_at(place, chosen, fingerprint=fingerprint)
    except BaseException:
        place.store.close()
        raise


def index_options(url: str, options: SourceOptions) -> tuple[str, SourceOptions]:
    """Return the URL of a dataset, and its options with the source that the text may name.

    Args:
        url: A URL, or ``INDEX from SOURCE``.
        options: The options, which may name the source instead.

    Raises:
        BadArgumentError: Both name a source, or one of the URLs is missing.
    """
    index, source = split_source(url)
    if source is None:
        return url, options
    if options.index_of is not None or not index or not source:
        raise BadArgumentError(
            f"{url!r} with index_of={options.index_of!r} does not name one index and one source; "
            "expected `INDEX from SOURCE`, or index_of beside the URL of the index",
            field="url",
        )
    return index, replace(options, index_of=source)


def _found(place: Place, candidates: Iterable[Source]) -> Source:
    marks: list[str] = []
    for source in candidates:
        try:
            if source.detect(place):
                return source
        except StoreRefusedError as error:
            if not marks:
                raise
            # What is missing may be another right: without the right to list, absence is hidden.
            raise StoreRefusedError(
                f"{place.store.url} contains {', '.join(marks)} that may be read, and other "
                f"datasets are found by a listing, but {error.message}",
                **error.metadata,
            ) from error
        marks.append(f"no {source.MARK}")
    url = place.store.url
    refuse_absent(url, _advice(url))
    raise NotADatasetError(
        f"{url} holds no dataset: it contains {', '.join(marks)}; "
        f"{unfinished_kind(place.store) or _advice(url)}",
        url=url,
    )


def _advice(url: str) -> str:
    """Return advice for a URL without a dataset."""
    name = url.rpartition("/")[2]
    base, _, length = url.rpartition(":")
    if length.isdecimal() and (re.fullmatch(r"\w+://.+/.+", base) or Path(base).is_dir()):
        return (
            f"{name} may name packed rows, which differ in each epoch and which only servers and "
            f"`RemoteDataset(None, URL)` read; to read documents here, give {base}"
        )
    if re.fullmatch(r"[\w.-]+:\d+", name):
        return (
            f"{name} looks like the address of a server; `headrace list {name}` shows what it "
            "serves"
        )
    if "#" in name:
        return (
            "the part after # must be the fingerprint of a version, 32 hexadecimal digits, as "
            "shown by `headrace inspect URL`"
        )
    inner = sorted(found.parent.name for found in Path(url).glob("*/headrace.json"))
    if inner:
        shown = ", ".join(inner[:9]) + (", …" if len(inner) > 9 else "")  # noqa: PLR2004 - a line
        return f"these folders in it are datasets: {shown}; add the name of one to the URL"
    if Path(url).is_file():
        return f"it is a file: convert it to a dataset with `headrace convert {url} FOLDER`"
    return "check the URL, or write a dataset there with `headrace convert`"
