"""Name a DataFrame by what it computes: the same key for the same plan over the same files.

Spark's own `semanticHash` has 32 bits, knows neither when files changed nor that a restart of
Spark changes nothing, so it is not enough to find a conversion again. Here a plan is *plain* if
its text says all that it computes: known operators and built-in functions over files, ranges and
small literal tables. A plain plan's key is a digest of that text, of the options of its readers
and of path, size and time of every file: it holds in every session. All other plans (Python and
Scala functions, RDDs, caches of other systems) and those of Spark Connect, whose plans cannot be
looked into, are told apart by `semanticHash` within one Spark application, and by nothing beyond.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.converter._job import context_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VERSION = 1  # of what a key is made of
_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive")
_NODES = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_PLAIN_NODES = frozenset(
    (
        "Aggregate",
        "CTERelationDef",
        "CTERelationRef",
        "Deduplicate",
        "Distinct",
        "Except",
        "Expand",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Intersect",
        "Join",
        "LocalLimit",
        "LocalRelation",
        "Offset",
        "OneRowRelation",
        "Project",
        "Range",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "Sort",
        "SubqueryAlias",
        "Tail",
        "Union",
        "Unpivot",
        "View",
        "Window",
        "WithCTE",
    )
)
# Functions of others; plans within expressions; and lambdas, whose variables are numbered anew.
_OPAQUE_EXPRESSIONS = ("UDF", "UDAF", "UserDefined", "Aggregator", "Subquery", "Exists", "Lambda")
_MAX_LITERAL_ROWS = 10_000  # more than that is data, and its text would be as large
_LITERALS = frozenset(("boolean", "byte", "short", "integer", "long", "float", "double", "string"))
_ALL_FIELDS = "2147483647"


def plan_key(df: DataFrame, options: Mapping[str, object]) -> str:
    """Return 32 hexadecimal digits that name what ``df`` computes and how it is to be stored.

    Args:
        df: Any DataFrame; it is analysed, and not run.
        options: What else makes a difference, JSON-serialisable.
    """
    facts = {
        "version": _VERSION,
        "schema": df.schema.jsonValue(),
        "options": dict(options),
        "settings": {name: df.sparkSession.conf.get(name) for name in _SETTINGS},
        "plan": _plan_facts(df),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _plan_facts(df: DataFrame) -> object:
    if context_of(df) is None:
        return _facts_in_application(df)
    plan = _canonical_plan(df)
    leaves = list(_items(plan.collectLeaves()))
    facts = [_leaf_facts(leaf) for leaf in leaves]
    with _whole_text(df.sparkSession):
        told = {"text": str(plan.toString()), "leaves": facts}
    if None in facts or not _is_plain(plan):
        return {**told, "application": _facts_in_application(df)}
    return told


def _canonical_plan(df: DataFrame) -> Any:
    # Internal to PySpark, and the only way to a plan; the same from 3.5 to 4.
    return df._jdf.queryExecution().analyzed().canonicalized()  # noqa: SLF001


def _facts_in_application(df: DataFrame) -> list[object]:
    application = df.sparkSession.conf.get("spark.app.id", "")
    return [application, df.semanticHash(), sorted(df.inputFiles())]


def _leaf_facts(leaf: Any) -> list[str] | None:
    """Return what the text of a leaf leaves out, or nothing where it cannot be known."""
    name = _class_name(leaf)
    if name == "LogicalRelation":
        return _relation_facts(leaf.relation())
    if name == "LocalRelation":
        rows = leaf.data()
        types = {str(field.dataType().typeName()) for field in _items(leaf.schema())}
        is_small = rows.size() <= _MAX_LITERAL_ROWS and types <= _LITERALS
        return [str(rows.mkString("\n"))] if is_small else None
    return [] if name in _PLAIN_NODES else None


def _relation_facts(relation: Any) -> list[str] | None:
    if _class_name(relation) != "HadoopFsRelation":
        return None
    location = relation.location()
    if _class_name(location) != "InMemoryFileIndex":
        return None
    # A file's status is written with its size and the time of its last change.
    statuses = sorted(str(location.allFiles().mkString("\n")).splitlines())
    options = sorted(str(relation.options().mkString("\n")).splitlines())
    return [str(relation.dataSchema().json()), *options, *statuses]


def _is_plain(plan: Any) -> bool:
    name = str(plan.getClass().getName())
    is_known = name.removeprefix(_NODES) in _PLAIN_NODES or name.endswith(".LogicalRelation")
    return (
        is_known
        and all(_is_plain_expression(part) for part in _items(plan.expressions()))
        and all(_is_plain(child) for child in _items(plan.children()))
    )


def _is_plain_expression(expression: Any) -> bool:
    name = str(expression.getClass().getName())
    return (
        name.startswith(_EXPRESSIONS)
        and not any(mark in name for mark in _OPAQUE_EXPRESSIONS)
        and all(_is_plain_expression(child) for child in _items(expression.children()))
    )


@contextmanager
def _whole_text(spark: SparkSession) -> Iterator[None]:
    """Let Spark write plans out in full: it leaves out columns after the 25th."""
    name = "spark.sql.debug.maxToStringFields"
    before = spark.conf.get(name, None)
    spark.conf.set(name, _ALL_FIELDS)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))


def _class_name(value: Any) -> str:
    return str(value.getClass().getSimpleName())
