"""Make the key of a conversion, and say whether the conversion can be found again by it.

A key is a digest of everything that determines the rows and how they are stored: the plan with its
literals, the files that it reads, the settings of the session, the schema, and the caller's
options. If a part cannot be known (users' functions, RDDs, results of other systems, a cache,
anything in Spark Connect), the conversion gets a unique key and cannot be found again, unless the
caller names the unknown parts. The name then stands for these only; the rest stays in the key.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.converter.keys.encoding import Node, digest
from headrace.converter.keys.files import Files, changed_file, settle
from headrace.converter.keys.java import class_of, items_of, jvm_of
from headrace.converter.keys.plan import Plan
from headrace.converter.keys.settings import parallelism_of, settings_of, unknown_extensions
from headrace.converter.spark.job import context_of
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VERSION = 2  # of the contents of a key
_SHOWN = 5  # names of unknown parts in a message


@dataclass(frozen=True, slots=True)
class ConversionKey:
    """The name of a conversion.

    Attributes:
        text: 32 hexadecimal digits.
        unknown: Descriptions of parts that cannot be known and that the caller has not named. If
            there are any, the conversion cannot be found again.
        files: The files that the DataFrame reads, as Spark listed them.
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
        df: Any DataFrame; it is analysed, but not run.
        asked: How to store it: `None`, bools, numbers, texts, bytes, and sequences and mappings of
            them.
        name: The caller's name for all unknown parts.
        unknown: Descriptions of unknown parts outside the DataFrame.
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
    """Refuse to continue if a file has changed since the key was made.

    Raises:
        BadArgumentError: A file has changed; the message names it.
    """
    for files in key.files:
        path = changed_file(files)
        if path is not None:
            raise BadArgumentError(
                f"{path} changed while it was converted, so it is unknown which rows were read; "
                "the conversion is not kept: create the DataFrame again and convert it",
                field="df",
            )


def _facts(df: DataFrame) -> tuple[Plan | None, object, list[str]]:
    """Return the plan, the other contents of the key, and the unknown parts found so far."""
    if context_of(df) is None:
        return None, None, ["Spark Connect does not show the plan"]
    unknown = [
        f"the session has the extension {name}" for name in unknown_extensions(df.sparkSession)
    ]
    if _is_cached(df):
        unknown.append("it reads data that Spark has cached, which may be older than the files")
    analysed = df._jdf.queryExecution().analyzed()  # noqa: SLF001 - Spark's only way to a plan
    if _says_now(df, analysed):
        unknown.append("it has a text such as 'today', which means another time at each run")
    return Plan(df), (settings_of(df.sparkSession), analysed), unknown


def _is_cached(df: DataFrame) -> bool:
    """Return whether Spark would take rows from its cache."""
    state: Any = df._jdf.sparkSession().sharedState()  # noqa: SLF001 - as above
    if state.cacheManager().isEmpty():
        return False
    # A new plan, because that of ``df`` may have been made before anything was cached.
    plan = df.alias("headrace")._jdf.queryExecution().withCachedData()  # noqa: SLF001 - as above
    plans = [plan, *items_of(plan.subqueriesAll())]
    leaves = (leaf for part in plans for leaf in items_of(part.collectLeaves()))
    return any(class_of(leaf).endswith(".InMemoryRelation") for leaf in leaves)


def _says_now(df: DataFrame, analysed: Any) -> bool:
    """Return whether Spark would replace a text by the current time."""
    rules = jvm_of(df.sparkSession).org.apache.spark.sql.catalyst.optimizer
    plans = (analysed, *items_of(analysed.subqueriesAll()))
    ready = [rules.ReplaceExpressions.apply(plan) for plan in plans]
    return any(not rules.SpecialDatetimeValues.apply(plan).fastEquals(plan) for plan in ready)


def _words(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
    return f"its plan contains {', '.join(names[:_SHOWN])}{more}, which headrace cannot inspect"


def _refuse(value: object) -> object:
    raise BadArgumentError(f"{value!r} cannot be part of a conversion's key", field="df")
