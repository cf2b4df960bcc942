"""Open a plan of classic Spark, part by part, for `headrace.converter.keys.encoding`.

A plan is opened as it was analysed, not in the form in which Spark compares plans: for that form
Spark reorders sums, which changes sums of floating-point numbers.

1. A part of a known class becomes its class and its arguments, each opened in turn.
2. Ids that hold only within a session (of columns, of common table expressions) are replaced by
   numbers in the order in which they are met, so that they do not differ between sessions.
3. Names that have no effect after the analysis (aliases of tables, of variables of lambdas) and
   hints about how to run a plan are left out.
4. A part of any other class is noted as unknown; the parts below it are still opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # py4j has no stubs

from headrace.converter.keys.encoding import Node
from headrace.converter.keys.files import Files, files_of
from headrace.converter.keys.java import call_method, class_of, is_a, items_of
from headrace.converter.keys.known import (
    BY_PARTITION,
    CAPTURED,
    CATALYST,
    CLASSES,
    EXPRESSIONS,
    LOGICAL,
)
from headrace.converter.keys.rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TREE = f"{CATALYST}trees.TreeNode"
_PLAN = f"{CATALYST}plans.QueryPlan"
_TYPES = "org.apache.spark.sql.types."
_NESTED = ("Array", "Map", "Struct")
_COLLECTIONS = ("scala.collection.", f"{CATALYST}util.CaseInsensitiveMap")


class Plan:
    """A plan that is being opened.

    Attributes:
        unknown: Names of its parts whose computation is not known.
        files: The files that it reads.
        draws_by_partition: Whether rows depend on the number of cores of the cluster.
    """

    def __init__(self, df: DataFrame) -> None:
        self.unknown: list[str] = []
        self.files: list[Files] = []
        self.draws_by_partition = False
        self._df = df
        self._session = df.sparkSession
        self._numbers: dict[object, int] = {}
        self._arities: dict[str, int] = {}
        self._special: dict[str, Callable[[Any], object]] = {
            f"{EXPRESSIONS}AttributeReference": self._column,
            f"{EXPRESSIONS}NamedLambdaVariable": self._variable,
            f"{EXPRESSIONS}Literal": self._literal,
            f"{EXPRESSIONS}Alias": self._alias,
            f"{EXPRESSIONS}ExprId": lambda thing: self._number(str(thing.toString())),
            f"{EXPRESSIONS}CommonExpressionId": lambda thing: self._number(("common", thing.id())),
            f"{EXPRESSIONS}Cast": self._cast,
            f"{EXPRESSIONS}In": self._in,
            f"{EXPRESSIONS}CsvToStructs": self._with_setting,
            f"{EXPRESSIONS}JsonToStructs": self._with_setting,
            f"{LOGICAL}SubqueryAlias": lambda thing: thing.child(),
            f"{LOGICAL}ResolvedHint": lambda thing: thing.child(),
            f"{LOGICAL}JoinHint": lambda _: None,
            f"{LOGICAL}HintInfo": lambda _: None,
            f"{LOGICAL}View": self._view,
            f"{LOGICAL}CTERelationDef": self._common_table,
            f"{LOGICAL}CTERelationRef": self._common_table_again,
            f"{LOGICAL}LocalRelation": self._rows,
            "org.apache.spark.sql.execution.datasources.LogicalRelation": self._relation,
            "scala.None$": lambda _: None,
            "scala.Some": lambda thing: (thing.get(),),
            "scala.Enumeration$Val": lambda thing: str(thing.toString()),
            "org.apache.spark.unsafe.types.UTF8String": lambda thing: bytes(thing.getBytes()),
            f"{_TYPES}Decimal": lambda thing: str(thing.toString()),
        }

    def open(self, thing: Any) -> object:
        """Return the contents of an object of the plan; an `Opener`."""
        name = class_of(thing)
        if name in self._special:
            return self._special[name](thing)
        if name in CLASSES or name.startswith("scala.Tuple"):
            return self._product(thing, name)
        if name.startswith(_TYPES) and is_a(self._session, thing, f"{_TYPES}DataType", name=name):
            return Node("type", (str(thing.json()),))
        if name.startswith(_COLLECTIONS):
            return self._collection(thing, name)
        return self._unknown_part(thing, name)

    def _product(self, thing: Any, name: str) -> object:
        if name not in self._arities:
            # A class may have arguments that do not count as its parts.
            if is_a(self._session, thing, _TREE, name=name) and thing.otherCopyArgs().size():
                return self._unknown_part(thing, name)
            self._arities[name] = int(thing.productArity())
        self.draws_by_partition |= name in BY_PARTITION
        arity = self._arities[name]
        return Node(name, tuple(thing.productElement(index) for index in range(arity)))

    def _collection(self, thing: Any, name: str) -> object:
        if is_a(self._session, thing, "scala.collection.Seq", name=name):
            return tuple(items_of(thing))
        if is_a(self._session, thing, "scala.collection.Map", name=name):
            found = dict(map(_pair, items_of(thing.toSeq())))
            if all(isinstance(part, str) for pair in found.items() for part in pair):
                return found
        return self._unknown_part(thing, name)

    def _unknown_part(self, thing: Any, name: str) -> Node:
        self.unknown.append(name.rpartition(".")[2])
        if not is_a(self._session, thing, _TREE, name=name):
            return Node("unknown", (name,))
        parts = [items_of(thing.children())]
        if is_a(self._session, thing, _PLAN, name=name):
            parts += [items_of(thing.expressions()), items_of(thing.output())]
        return Node("unknown", (name, *(tuple(part) for part in parts)))

    def _number(self, named: object) -> Node:
        return Node("number", (self._numbers.setdefault(named, len(self._numbers)),))

    def _column(self, thing: Any) -> Node:
        # Its JSON is complete, and takes one call where its parts take six.
        [facts] = json.loads(thing.toJSON())
        number = self._number(f"ExprId({facts['exprId']['id']},{facts['exprId']['jvmId']})")
        kind = json.dumps(facts["dataType"], sort_keys=True)
        metadata = json.dumps(facts["metadata"], sort_keys=True)
        return Node("column", (number, facts["name"], kind, bool(facts["nullable"]), metadata))

    def _variable(self, thing: Any) -> Node:
        return Node("variable", (thing.exprId(), thing.dataType(), thing.nullable()))

    def _literal(self, thing: Any) -> Node:
        return Node("literal", (thing.value(), thing.dataType()))

    def _alias(self, thing: Any) -> Node:
        return Node("alias", (thing.child(), thing.name(), thing.exprId()))

    def _cast(self, thing: Any) -> object:
        source = class_of(thing.child().dataType()).removeprefix(_TYPES)
        is_shown = source.startswith(_NESTED) and "String" in class_of(thing.dataType())
        return self._with_setting(thing) if is_shown else self._product(thing, class_of(thing))

    def _in(self, thing: Any) -> object:
        is_empty = not thing.list().size()
        return self._with_setting(thing) if is_empty else self._product(thing, class_of(thing))

    def _with_setting(self, thing: Any) -> object:
        name = class_of(thing)
        try:
            setting = call_method(self._session, thing, CAPTURED[name])
        except Py4JError:
            return self._unknown_part(thing, name)
        return Node("captured", (setting, self._product(thing, name)))

    def _view(self, thing: Any) -> Node:
        described = thing.desc()
        return Node("view", (described.viewText(), described.properties(), thing.child()))

    def _common_table(self, thing: Any) -> Node:
        return Node("common table", (self._number(("cte", thing.id())), thing.child()))

    def _common_table_again(self, thing: Any) -> Node:
        number = self._number(("cte", thing.cteId()))
        return Node("common table again", (number, thing.output()))

    def _rows(self, thing: Any) -> Node:
        rows = rows_of(self._df, thing)
        if rows is None or thing.isStreaming():
            return self._unknown_part(thing, class_of(thing))
        return Node("rows", (thing.output(), rows))

    def _relation(self, thing: Any) -> Node:
        found = None if thing.isStreaming() else files_of(self._session, thing.relation())
        if found is None:
            return self._unknown_part(thing, class_of(thing))
        self.files.append(found)
        return Node("files", (thing.output(), *found.facts))


def _pair(found: Any) -> tuple[Any, Any]:
    return found.productElement(0), found.productElement(1)
