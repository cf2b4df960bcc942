"""The sources that are installed: a line each, for what is imported when it is first needed.

A source is a module, as `headrace.storage.source.source.Source` describes it, in a folder of its
own. A server of headrace's own shards imports no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import cast

from headrace.errors import BadArgumentError
from headrace.storage.source.source import IndexedSource, Source

# In the order of detection, the cheapest first.
_MODULES: Mapping[str, str] = {
    "arrow": "headrace.storage.open.arrow_source",
    "mds": "headrace.storage.mds.source",
    "parquet": "headrace.storage.parquet.source",
    "webdataset": "headrace.storage.webdataset.source",
}
_OWN = "arrow"
# By the schemes of the names that catalogs give; at other URLs there are none of them.
_NAMED: Mapping[str, tuple[str, str]] = {
    "iceberg": ("iceberg", "headrace.storage.iceberg.source"),
    "uc": ("unity", "headrace.storage.unity.source"),
}


def sources(name: str | None, *, url: str) -> Iterator[Source]:
    """Yield the source with a name, or all sources for a URL in the order of detection.

    Raises:
        BadArgumentError: There is no source with this name.
    """
    known = {**_MODULES, **dict(_NAMED.values())}
    if name is not None and name not in known:
        raise BadArgumentError(
            f"source is {name[:100]!r}, expected one of {', '.join(known)}", field="source"
        )
    named = _NAMED.get(url.partition("://")[0])
    if name is None and named is not None:
        name = named[0]
    return (_source(each) for each in ([name] if name is not None else _MODULES))


def indexed_sources() -> Mapping[str, IndexedSource]:
    """Return the sources whose index can be stored, by name, in the order of detection."""
    names = [*_MODULES, *(name for name, _ in _NAMED.values())]
    return {name: indexed_source(name) for name in names if name != _OWN}


def indexed_source(name: str) -> IndexedSource:
    """Return the source with a name, whose index can be stored."""
    return cast("IndexedSource", _source(name))


def _source(name: str) -> Source:
    module = _MODULES.get(name) or dict(_NAMED.values())[name]
    return cast("Source", import_module(module))
