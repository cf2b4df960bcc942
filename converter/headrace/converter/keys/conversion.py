"""Make the key of a conversion, and say whether it may be found again by it.

A key is a digest of everything that settles the rows and how they are stored: the plan with its
literals, the files that it reads, the settings of the session, the schema, and what the caller
asks for. Where a part of that cannot be known (functions of users, RDDs, what other systems
compute, a cache, all of Spark Connect), the conversion has a key of its own and is found by nobody,
unless the caller names the unknown part. Then that name stands for it, and for nothing else: what
can be known is part of the key as always.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.converter.keys.encoding import Node, digest
from headrace.converter.keys.files import Files, changed_file, settle
from headrace.converter.keys.java import class_of, items_of
from headrace.converter.keys.plan import Plan
from headrace.converter.keys.settings import parallelism_of, settings_of, strange_extensions
from headrace.converter.spark.job import context_of
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VERSION = 2  # of what a key is made of
_SHOWN = 5  # names of unknown parts in a message


@dataclass(frozen=True, slots=True)
class ConversionKey:
    """What names a conversion.

    Attributes:
        text: 32 hexadecimal digits.
        unknown: What nobody can look into, in words, where nobody has named it; a conversion of
            which this is not empty is found by nobody.
        files: What the DataFrame reads, as it was listed.
    """

    text: str
    unknown: tuple[str, ...]
    files: tuple[Files, ...] = ()


def conversion_key(
    df: DataFrame,
    asked: Mapping[str, object],
    *,
    name: str | None = None,
    unknown: Sequence[str] = (),
) -> ConversionKey:
    """Return the key of a conversion of ``df``.

    Args:
        df: Any DataFrame; it is analysed, and not run.
        asked: How it is to be stored: `None`, bools, numbers, texts, bytes, and sequences and
            mappings of them.
        name: What the caller names all that is unknown.
        unknown: What is besides the DataFrame, in words.
    """
    plan, facts, found = _facts(df)
    text = digest(
        Node(
            "conversion",
            (_VERSION, str(df.schema.json()), dict(asked), name, tuple(unknown), facts),
        ),
        _refuse if plan is None else plan.open,
    )
    if plan is not None:
        found += [_words(sorted(set(plan.unknown)))] if plan.unknown else []
        if plan.draws_by_partition:
            text = digest((text, parallelism_of(df.sparkSession)), _refuse)
    left = (*unknown, *found) if name is None else ()
    files = () if plan is None else tuple(plan.files)
    settle(files)
    return ConversionKey(uuid.uuid4().hex if left else text, left, files)


def refuse_changed_files(key: ConversionKey) -> None:
    """Refuse to continue where a file is not as it was when the key was made.

    Raises:
        BadArgumentError: One is not; the message names it.
    """
    for files in key.files:
        path = changed_file(files)
        if path is not None:
            raise BadArgumentError(
                f"{path} changed while it was converted, so it is unknown which rows were read; "
                "the conversion is not kept: make the DataFrame again, and convert it again",
                field="df",
            )


def _facts(df: DataFrame) -> tuple[Plan | None, object, list[str]]:
    """Return the plan, what the key is made of besides, and what is unknown up to here."""
    if context_of(df) is None:
        return None, None, ["Spark Connect shows no plans"]
    unknown = [
        f"the session has the extension {name}" for name in strange_extensions(df.sparkSession)
    ]
    if _is_cached(df):
        unknown.append("it reads data that Spark has cached, which may be older than the files")
    analysed = df._jdf.queryExecution().analyzed()  # noqa: SLF001 - Spark's only way to a plan
    return Plan(df), (settings_of(df.sparkSession), analysed), unknown


def _is_cached(df: DataFrame) -> bool:
    """Tell whether Spark would take rows from its cache."""
    state: Any = df._jdf.sparkSession().sharedState()  # noqa: SLF001 - as above
    if state.cacheManager().isEmpty():
        return False
    # A plan of its own: that of ``df`` may have been settled before anything was cached.
    plan = df.alias("headrace")._jdf.queryExecution().withCachedData()  # noqa: SLF001 - as above
    plans = [plan, *items_of(plan.subqueriesAll())]
    leaves = (leaf for part in plans for leaf in items_of(part.collectLeaves()))
    return any(class_of(leaf).endswith(".InMemoryRelation") for leaf in leaves)


def _words(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
    return f"its plan contains {', '.join(names[:_SHOWN])}{more}, which headrace cannot inspect"


def _refuse(value: object) -> object:
    raise BadArgumentError(f"{value!r} cannot be part of a conversion's key", field="df")
