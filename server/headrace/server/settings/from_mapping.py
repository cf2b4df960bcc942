"""Build frozen settings from parsed YAML or text, with errors that name the place.

The fields of a dataclass, with their names and types, are the only schema: a setting added to the
class can be used in files at once.
"""

from __future__ import annotations

import difflib
import re
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from headrace.errors import ConfigurationError, HeadraceError

_Settings = TypeVar("_Settings")

_SIZE = re.compile(r"(\d+)\s*([kmgt]ib|b|)", re.IGNORECASE)
_UNITS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def from_mapping(kind: type[_Settings], stated: object, *, where: str) -> _Settings:
    """Return settings of one kind; see `from_mappings`."""
    (made,) = from_mappings((kind,), stated, where=where)
    return made


def from_mappings(
    kinds: Sequence[type[_Settings]], stated: object, *, where: str
) -> list[_Settings]:
    """Return settings of several kinds, which stand side by side.

    Args:
        kinds: Dataclasses, whose fields have different names.
        stated: A mapping from the names of their fields to values.
        where: The place in messages, such as ``datasets.flights``.

    Raises:
        ConfigurationError: A key is unknown, or a value does not have its field's type. Fields that
            ``repr`` leaves out are secrets, whose values never appear in messages.
    """
    if not isinstance(stated, Mapping):
        raise ConfigurationError(
            f"{where} is {_kind_of(stated)}; expected keys and values, such as "
            f"{stated_fields(kinds[0])[0].name}: …"
        )
    known = [one.name for kind in kinds for one in stated_fields(kind)]
    for key in stated:
        if key not in known:
            raise ConfigurationError(_unknown(where, key, known))
    twice = [name for name, count in Counter(known).items() if count > 1]
    if twice:
        raise ConfigurationError(f"two settings are named {twice[0]!r}; rename that of the stage")
    return [_made(kind, stated, where) for kind in kinds]


def _made(kind: type[_Settings], stated: Mapping[Any, object], where: str) -> _Settings:
    known = {one.name: one for one in stated_fields(kind)}
    hints = get_type_hints(kind)
    missing = [name for name, one in known.items() if _is_needed(one) and name not in stated]
    if missing:
        raise ConfigurationError(f"{where or 'the configuration'} lacks {', '.join(missing)}")
    values = {}
    for key, value in stated.items():
        if key not in known:
            continue
        place = _Place(f"{where}.{key}".lstrip("."), key, not known[key].repr)
        values[key] = _value(value, hints[key], place)
    try:
        return kind(**values)
    except HeadraceError as error:
        raise ConfigurationError(f"{where}: {error.message}" if where else error.message) from error


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a value in the settings.

    Attributes:
        path: The file, for messages.
        name: The name of the setting, whose suffix is its unit.
        is_secret: Whether its value must not appear in messages.
    """

    path: str
    name: str
    is_secret: bool

    def refusal(self, value: object, wanted: str) -> ConfigurationError:
        """Return an error that names what was found and what was expected."""
        found = _kind_of(value) if self.is_secret else repr(value)
        return ConfigurationError(f"{self.path} is {found}; expected {wanted}")


def _value(value: object, hint: Any, place: _Place) -> object:
    """Return a value converted to its field's type."""
    origin = get_origin(hint)
    if origin in {Union, types.UnionType}:
        return _one_of(value, get_args(hint), place)
    if origin is Literal:
        if value not in get_args(hint):
            raise place.refusal(value, f"one of {', '.join(map(str, get_args(hint)))}")
        return value
    if origin is tuple:
        return _tuple(value, get_args(hint)[0], place)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(value, get_args(hint)[1], place)
    if is_dataclass(hint) and isinstance(hint, type):
        return from_mapping(hint, value, where=place.path)
    return _scalar(value, hint, place)


def _one_of(value: object, hints: tuple[Any, ...], place: _Place) -> object:
    if value is None and types.NoneType in hints:
        return None
    chosen = [hint for hint in hints if hint is not types.NoneType]
    for hint in chosen:
        # A text is not a list, and a mapping is neither, so the kind of value decides.
        if _has_shape(value, hint):
            return _value(value, hint, place)
    return _value(value, chosen[0], place)


def _has_shape(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is tuple:
        return isinstance(value, list | tuple)
    if is_dataclass(hint):
        return isinstance(value, Mapping)
    return origin is None and isinstance(hint, type) and type(value) is hint


def _tuple(value: object, hint: Any, place: _Place) -> tuple[object, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        raise place.refusal(value, "a list")
    return tuple(_value(one, hint, place) for one in value)


def _mapping(value: object, hint: Any, place: _Place) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise place.refusal(value, "names and values")
    return {
        key: _value(one, hint, _Place(f"{place.path}.{key}", key, place.is_secret))
        for key, one in value.items()
    }


def _scalar(value: object, kind: Any, place: _Place) -> object:
    if kind is bool:
        found = value if isinstance(value, bool) else _TRUTH.get(str(value).lower())
        if found is None:
            raise place.refusal(value, "true or false")
        return found
    if kind is int:
        return _integer(value, place)
    if kind is float:
        return _number(value, place)
    if not isinstance(value, str):
        raise place.refusal(value, "text")
    return value


def _number(value: object, place: _Place) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(value)
    raise place.refusal(value, "a number")


def _integer(value: object, place: _Place) -> int:
    if type(value) is int:
        return value
    text = str(value).strip()
    if place.name.endswith("_bytes"):
        if isinstance(value, str) and (found := _SIZE.fullmatch(text)):
            return int(found[1]) << 10 * _UNITS[found[2][:1].lower()]
        raise place.refusal(value, "a number of bytes, or one with KiB, MiB or GiB")
    try:
        return int(text, 8 if place.name.endswith("_mode") else 10)
    except ValueError:
        raise place.refusal(value, "a whole number") from None


def _is_needed(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def stated_fields(kind: Any) -> list[Field[Any]]:
    """Return the fields of a dataclass that files and options can set.

    Those with the metadata ``is_stated``: False are made otherwise.
    """
    return [one for one in fields(kind) if one.metadata.get("is_stated", True)]


def _kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    return f"a value of type {type(value).__name__}"


def _unknown(where: str, key: object, known: list[str]) -> str:
    close = difflib.get_close_matches(str(key), known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
    return f"{where + ' has' if where else 'there is'} no setting {key!r}; {hint}"
