"""All layouts of datasets, and the function that opens a dataset of any layout.

A source is a module, as `headrace.storage.source.source.Source` describes it, and a line here. Each
is imported when it is first needed, so a server of headrace's own shards imports no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.errors import BadArgumentError, NotADatasetError
from headrace.storage.source.source import OpenDataset, Place, Source, SourceOptions
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import open_store


def open_dataset(
    url: str,
    *,
    options: StoreOptions | None = None,
    fingerprint: str | None = None,
    source_options: SourceOptions | None = None,
) -> OpenDataset:
    """Open the dataset at a URL: its current version, or the one with ``fingerprint``.

    Args:
        url: A local path, ``s3://bucket/prefix``, and so on.
        options: How to reach the store.
        fingerprint: 32 hexadecimal digits of a version that has not been removed.
        source_options: The source to use, and what each source may do.

    Raises:
        BadArgumentError: There is no source with the name in ``source_options``.
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
    chosen = source_options or SourceOptions()
    store_options = options or StoreOptions()
    candidates = _candidates(chosen.source)
    place = Place(url, open_store(url, options=store_options), store_options)
    try:
        return _found(place, candidates).open_at(place, chosen, fingerprint=fingerprint)
    except BaseException:
        place.store.close()
        raise


def _arrow() -> Source:
    from headrace.storage.open import arrow_source  # noqa: PLC0415

    return arrow_source


def _mds() -> Source:
    from headrace.storage.mds import source  # noqa: PLC0415

    return source


def _parquet() -> Source:
    from headrace.storage import parquet  # noqa: PLC0415

    return parquet


def _webdataset() -> Source:
    from headrace.storage import webdataset  # noqa: PLC0415

    return webdataset


# In the order of detection, the cheapest first.
_SOURCES: Mapping[str, Callable[[], Source]] = {
    "arrow": _arrow,
    "mds": _mds,
    "parquet": _parquet,
    "webdataset": _webdataset,
}


def _candidates(name: str | None) -> Mapping[str, Callable[[], Source]]:
    if name is None:
        return _SOURCES
    if name not in _SOURCES:
        raise BadArgumentError(
            f"source is {name[:100]!r}, expected one of {', '.join(_SOURCES)}", field="source"
        )
    return {name: _SOURCES[name]}


def _found(place: Place, candidates: Mapping[str, Callable[[], Source]]) -> Source:
    marks = []
    for load in candidates.values():
        source = load()
        if source.detect(place):
            return source
        marks.append(f"no {source.MARK}")
    url = place.store.url
    raise NotADatasetError(
        f"{url} holds no dataset: it contains {', '.join(marks)}; {_advice(url)}", url=url
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
