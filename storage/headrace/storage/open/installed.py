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
    "iceberg": "headrace.storage.iceberg.source",
    "unity": "headrace.storage.unity.source",
    "mds": "headrace.storage.mds.source",
    "parquet": "headrace.storage.parquet.source",
    "webdataset": "headrace.storage.webdataset.source",
}
_OWN = "arrow"


def sources(name: str | None) -> Iterator[Source]:
    """Yield the source with a name, or all sources in the order of detection.

    Raises:
        BadArgumentError: There is no source with this name.
    """
    if name is not None and name not in _MODULES:
        raise BadArgumentError(
            f"source is {name[:100]!r}, expected one of {', '.join(_MODULES)}", field="source"
        )
    return (_source(each) for each in ([name] if name is not None else _MODULES))


def indexed_sources() -> Mapping[str, IndexedSource]:
    """Return the sources whose index can be stored, by name, in the order of detection."""
    return {name: indexed_source(name) for name in _MODULES if name != _OWN}


def indexed_source(name: str) -> IndexedSource:
    """Return the source with a name, whose index can be stored."""
    return cast("IndexedSource", _source(name))


def _source(name: str) -> Source:
    return cast("Source", import_module(_MODULES[name]))
