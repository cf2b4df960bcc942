"""Record the files that a plan reads, by path, size and modification time.

A listing does not show two changes within one tick of the store's clock, which is a second in
object stores. So a caller first waits until the tick of the last change is over (`settle`), and
later changes get another time. After the files are read, they must still match the listing
(`changed_file`); otherwise it is unknown which version was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.converter.keys.java import class_of, items_of, jvm_of
from headrace.converter.keys.known import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DATASOURCES = "org.apache.spark.sql.execution.datasources."
_TICK_MS = 1000  # of object stores; local file systems have milliseconds
_FINE_TICK_MS = 20  # two ticks of a kernel with 100 ticks a second

Stamp = tuple[int, int]
"""A file's size in bytes, and its modification time in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one relation.

    Attributes:
        facts: Everything that determines what Spark reads from them.
        stamps: The files as Spark listed them, by path.
        relist: Lists them again.
    """

    facts: tuple[object, ...]
    stamps: Mapping[str, Stamp]
    relist: Callable[[], Mapping[str, Stamp]]


def files_of(session: SparkSession, relation: Any) -> Files | None:
    """Return the files of a relation, or None if it does not list known files.

    Args:
        session: The session of the DataFrame.
        relation: The relation that a ``LogicalRelation`` reads.
    """
    if class_of(relation) != f"{_DATASOURCES}HadoopFsRelation":
        return None
    location, form = relation.location(), class_of(relation.fileFormat())
    is_listing = class_of(location) == f"{_DATASOURCES}InMemoryFileIndex"
    if not is_listing or form not in FORMATS or relation.bucketSpec().isDefined():
        return None
    stamps = _stamps(location)
    facts = (
        form,
        str(relation.dataSchema().json()),
        str(relation.partitionSchema().json()),
        relation.options(),
        tuple(str(path.toString()) for path in items_of(location.rootPaths())),
        {path: stamps[path] for path in sorted(stamps)},
    )

    def relist() -> Mapping[str, Stamp]:
        # In a new index, because listing again would change what the DataFrame reads.
        made = jvm_of(session)
        for part in f"{_DATASOURCES}InMemoryFileIndex".split("."):
            made = getattr(made, part)
        defaults = [getattr(made, f"$lessinit$greater$default${at}")() for at in (5, 6, 7)]
        nothing = defaults[1]
        paths, options = location.rootPaths(), relation.options()
        return _stamps(made(relation.sparkSession(), paths, options, nothing, *defaults))

    return Files(facts, stamps, relist)


def changed_file(files: Files) -> str | None:
    """Return the first file that has changed since it was listed, or None."""
    now = files.relist()
    return next((path for path, stamp in files.stamps.items() if now.get(path) != stamp), None)


def settle(
    files: Sequence[Files],
    *,
    clock_s: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait, at most 2 s, until any later change of a file gives it another modification time.

    Args:
        files: The files as they were listed.
        clock_s: Returns the seconds since 1970.
        sleep: Waits a number of seconds.
    """
    now_ms = clock_s() * 1000
    waits = [
        changed_ms + 2 * _tick_ms(changed_ms) - now_ms
        for part in files
        for _, changed_ms in part.stamps.values()
    ]
    longest_ms = min(max(waits, default=0), 2 * _TICK_MS)
    if longest_ms > 0:
        sleep(longest_ms / 1000)


def _tick_ms(changed_ms: int) -> int:
    return _FINE_TICK_MS if changed_ms % _TICK_MS else _TICK_MS


def _stamps(location: Any) -> dict[str, Stamp]:
    return {
        str(status.getPath().toString()): (status.getLen(), status.getModificationTime())
        for status in items_of(location.allFiles())
    }
