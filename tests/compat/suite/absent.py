"""Names that MosaicML's tests import from inside their package, and that headrace has not."""

from __future__ import annotations

from typing import Any, NoReturn


class _Absent:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *given: object, **named: object) -> NoReturn:
        raise NotImplementedError(f"headrace.compat.streaming has no {self._name}")

    def register(self, *given: object, **named: object) -> NoReturn:
        self(*given, **named)


def barrier() -> None:
    """Do nothing: each test is one process."""


def __getattr__(name: str) -> Any:
    return _Absent(name)
