"""JSON objects of files that anybody may have written: each value is checked when it is read."""

from __future__ import annotations

import re

from headrace.storage.store.names import name_problem

_DIGITS = re.compile("[0-9a-f]{32}")


class JsonObject:
    """An object in a file; all methods raise ValueError for other values than they return.

    Args:
        value: The parsed value.
        what: What it is, for errors.

    Raises:
        ValueError: It is no object.
    """

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{what} is not a JSON object")  # noqa: TRY004 - the file's fault, not a type's
        self._what = what
        self.values: dict[str, object] = value

    def nested(self, key: str) -> JsonObject:
        """Return an object."""
        return JsonObject(self.values.get(key), key)

    def sequence(self, key: str) -> list[object]:
        """Return a list."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise ValueError(f"{key} is {value!s:.100}, expected a list")  # noqa: TRY004 - as above
        return value

    def text(self, key: str) -> str:
        """Return a text."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise ValueError(f"{key} is {value!s:.100}, expected a string")  # noqa: TRY004 - as above
        return value

    def integer(self, key: str, high: int) -> int:
        """Return an integer in [0, high]."""
        value = self.values.get(key)
        if type(value) is not int or not 0 <= value <= high:
            raise ValueError(f"{key} is {value!s:.100}, expected an integer from 0 to {high}")
        return value

    def digits(self, key: str) -> str:
        """Return 32 hexadecimal digits."""
        value = self.text(key)
        if not _DIGITS.fullmatch(value):
            raise ValueError(f"{key} {value[:100]!r} is not 32 hexadecimal digits")
        return value

    def name(self, key: str) -> str:
        """Return the name of an object in a store."""
        value = self.text(key)
        problem = name_problem(value)
        if problem is not None:
            raise ValueError(f"{key} {value[:200]!r} of {self._what}: {problem}")
        return value
