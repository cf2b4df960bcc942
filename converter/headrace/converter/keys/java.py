"""Look into objects of Spark's JVM. They have no types here, because py4j has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped] # py4j has no stubs
from pyspark.sql import SparkSession

OBJECT = "java.lang.Object"
_KNOWN: dict[tuple[str, str], bool] = {}


def class_of(thing: Any) -> str:
    """Return the full name of an object's class."""
    return str(thing.getClass().getName())


def items_of(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    return (sequence.apply(index) for index in range(sequence.size()))


def is_a(session: SparkSession, thing: Any, kind: str, *, name: str) -> bool:
    """Return whether an object is an instance of a class or of a subclass.

    Args:
        session: The session of the JVM.
        thing: The object.
        kind: Name of the class.
        name: `class_of` the object; the JVM is asked once for all objects of a class.
    """
    if (name, kind) not in _KNOWN:
        _KNOWN[name, kind] = bool(is_instance_of(_gateway_of(session), thing, kind))
    return _KNOWN[name, kind]


def jvm_of(session: SparkSession) -> Any:
    """Return the view of the JVM that looks up classes by name."""
    return session.sparkContext._jvm  # noqa: SLF001 - Spark's only way


def call_method(session: SparkSession, thing: Any, method: str) -> Any:
    """Call a method without arguments, even a private one, and return its result.

    Raises:
        Py4JJavaError: The object's class does not define the method itself.
    """
    found = thing.getClass().getDeclaredMethod(method, _none_of(session, "java.lang.Class"))
    found.setAccessible(True)
    return found.invoke(thing, _none_of(session, OBJECT))


def _none_of(session: SparkSession, kind: str) -> Any:
    package, _, name = kind.rpartition(".")
    made = getattr(getattr(jvm_of(session), package), name)
    return _gateway_of(session).new_array(made, 0)


def _gateway_of(session: SparkSession) -> Any:
    return session.sparkContext._gateway  # noqa: SLF001 - Spark's only way
