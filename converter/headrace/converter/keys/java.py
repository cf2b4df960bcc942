"""Look into objects of Spark's JVM. They have no types here, since py4j has none."""

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
    """Yield what a Scala sequence holds."""
    return (sequence.apply(index) for index in range(sequence.size()))


def is_a(session: SparkSession, thing: Any, kind: str, *, name: str) -> bool:
    """Tell whether an object is of a class or one below it.

    Args:
        session: The session of the JVM.
        thing: The object.
        kind: Name of a class.
        name: `class_of` the object; the JVM is asked once for all objects of a class.
    """
    if (name, kind) not in _KNOWN:
        _KNOWN[name, kind] = bool(is_instance_of(_gateway_of(session), thing, kind))
    return _KNOWN[name, kind]


def jvm_of(session: SparkSession) -> Any:
    """Return what names of classes are looked up in."""
    return session.sparkContext._jvm  # noqa: SLF001 - Spark's only way


def hidden(session: SparkSession, thing: Any, method: str) -> Any:
    """Return what a method without arguments gives, also a private one.

    Raises:
        Py4JJavaError: The object's class has no such method of its own.
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
