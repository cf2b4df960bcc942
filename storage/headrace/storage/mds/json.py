"""Parse an index one shard at a time, so that it is never in memory as objects."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator

_DECODE = json.JSONDecoder().raw_decode
_SPACES = {" ", "\t", "\n", "\r"}
_SPACE = re.compile(r"[ \t\n\r]*")


def shard_objects(text: str) -> Iterator[object]:
    """Yield each element of the list ``shards`` of an index.

    Raises:
        ValueError: The text is not JSON, not an object with one list ``shards``, or its ``version``
            is not 2.
        RecursionError: It is nested too deeply.
    """
    place = _after(text, 0, "{")
    version, lists = None, 0
    while text[place] != "}":
        key, place = _DECODE(text, place)
        place = _after(text, place, ":")
        if key == "shards" and text[place] == "[":
            lists += 1
            place = yield from _elements(text, place)
        else:
            value, place = _DECODE(text, place)
            version = value if key == "version" else version
        place = _next(text, place, "}")
    if _skip(text, place + 1) != len(text):
        raise ValueError(f"text found after the end of the object, at character {place + 1}")
    if lists != 1:
        raise ValueError(f"{lists} lists named 'shards' found, 1 expected")
    if version != 2 or isinstance(version, bool | float):  # noqa: PLR2004 - the version
        raise ValueError(f"version {str(version)[:100]} found, but this headrace reads 2")


def _elements(text: str, place: int) -> Generator[object, None, int]:
    place = _after(text, place, "[")
    while text[place] != "]":
        value, place = _DECODE(text, place)
        yield value
        place = _next(text, place, "]")
    return place + 1


def _skip(text: str, place: int) -> int:
    if text[place : place + 1] not in _SPACES:
        return place
    match = _SPACE.match(text, place)
    assert match is not None  # it also matches an empty text
    return match.end()


def _after(text: str, place: int, mark: str) -> int:
    """Return where the text continues after ``mark``."""
    place = _skip(text, place)
    if text[place : place + 1] != mark:
        raise ValueError(f"{text[place : place + 1]!r} at character {place}, expected {mark!r}")
    place = _skip(text, place + 1)
    if place == len(text):
        raise ValueError(f"the text ends at character {place}")
    return place


def _next(text: str, place: int, end: str) -> int:
    """Return the place of the next element or of the ``end``."""
    place = _skip(text, place)
    if text[place : place + 1] == end:
        return place
    return _after(text, place, ",")
