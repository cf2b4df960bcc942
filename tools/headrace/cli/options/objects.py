"""Options of commands that are the fields of an object, such as `headrace.client.Order`.

Names, types, defaults and help are those of the dataclass, so a new field is an option of every
command that takes the object. The class is imported when a command is called or explained.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import cached_property, wraps
from importlib import import_module
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import click

from headrace.cli.options.types import NOT_NEGATIVE, SIZE

_Result = TypeVar("_Result")

_ATTRIBUTE = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |^\S|\Z)", re.MULTILINE | re.DOTALL)
_NONE = re.compile(r"[;,] (?:or )?None\b[^.;]*")
_CODE = re.compile(r"`+([^`]*)`+")
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


class ObjectCommand(click.Command):
    """A command some of whose options are fields of objects."""

    _params: list[Any]

    @property
    def params(self) -> list[click.Parameter]:
        """The options and arguments, with one for each field."""
        if any(isinstance(each, _Fields) for each in self._params):
            self._params = [
                option
                for each in self._params
                for option in (each.options if isinstance(each, _Fields) else (each,))
            ]
        # The list itself, to which click adds.
        return self._params

    @params.setter
    def params(self, given: list[Any]) -> None:
        self._params = given


class _Fields:
    """The options of one object."""

    def __init__(
        self, place: str, *, leave: Collection[str], types: Mapping[str, Any], is_set: bool
    ) -> None:
        self._place, self._leave, self._types, self._is_set = place, leave, types, is_set

    @cached_property
    def kind(self) -> Any:
        module, _, name = self._place.partition(":")
        return getattr(import_module(module), name)

    @cached_property
    def options(self) -> tuple[click.Option, ...]:
        kinds = (self.kind,) if isinstance(self.kind, type) else self.kind()
        return tuple(option for kind in kinds for option in self._options_of(kind))

    def _options_of(self, kind: Any) -> Iterator[click.Option]:
        hints, helps = get_type_hints(kind), attribute_texts(kind)
        for each in fields(kind):
            is_stated = each.metadata.get("is_stated", True) and _has_default(each)
            if is_stated and each.name not in self._leave:
                yield self._option(each, hints[each.name], helps[each.name])

    def _option(self, field: Field[Any], hint: object, text: str) -> click.Option:
        default = field.default
        name = field.name.replace("_", "-")
        is_several, metavar = get_origin(hint) is tuple, field.metadata.get("metavar")
        own = field.metadata.get("option", f"--{name.removesuffix('s') if is_several else name}")
        if is_several:
            return click.Option(
                [own, field.name],
                type=self._types.get(field.name, str),
                metavar=metavar,
                multiple=True,
                # None, so that what is set elsewhere applies.
                callback=lambda _context, _option, given: given or None,
                help=f"{text.rstrip('.')}; can be given several times.",
            )
        is_pair = hint is bool and "option" not in field.metadata
        has_default = default is not MISSING and default is not None
        is_shown = has_default and (is_pair or hint is not bool)
        shown = f"  [default: {_shown(field.name, default)}]" if is_shown else ""
        return click.Option(
            [f"--{name}/--no-{name}" if is_pair else own, field.name],
            is_flag=hint is bool,
            metavar=metavar,
            envvar=field.metadata.get("envvar"),
            type=self._types.get(field.name, bool if hint is bool else _type(field.name, hint)),
            default=default if self._is_set and has_default else None,
            show_default=False,  # in its own words, above
            help=text + shown,
        )


def object_options(
    place: str,
    into: str,
    *,
    leave: Collection[str] = (),
    types: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Add an option for each field of a dataclass to an `ObjectCommand`, which gets the object.

    Fields without a default are no options. The metadata of a field may have its ``option``, which
    for a `bool` is then a flag without a ``--no-``, its ``metavar`` and ``envvar``.

    Args:
        place: The class, as ``module:name``.
        into: The argument of the command that gets the object.
        leave: Names of fields that are no options.
        types: Types of values that click should check, by field, where the annotation is too wide.
    """
    group = _Fields(place, leave=leave, types=types or {}, is_set=True)

    def made(given: dict[str, Any]) -> dict[str, Any]:
        return {into: group.kind(**{name: x for name, x in given.items() if x is not None})}

    return _with(group, made)


def field_options(
    place: str, *, types: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Add an option for each field as `object_options` does, for a command that makes the object.

    The command gets those that are given, or have a default, as arguments of their own.
    """
    group = _Fields(place, leave=(), types=types or {}, is_set=True)
    return _with(group, lambda given: {name: x for name, x in given.items() if x is not None})


def setting_options(
    place: str, *, leave: Collection[str], types: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Add an option for each field as `object_options` does, with None for what is not given.

    The command gets each as an argument of its own. The place may be a function that returns
    several classes.
    """
    return _with(_Fields(place, leave=leave, types=types or {}, is_set=False), lambda given: given)


def attribute_texts(kind: type) -> dict[str, str]:
    """Return what the docstring of a class says of each attribute, in the words of options."""
    found = dict(_ATTRIBUTE.findall((inspect.getdoc(kind) or "").partition("Attributes:\n")[2]))
    return {name: _in_options(text, found) for name, text in found.items()}


def _in_options(text: str, names: Collection[str]) -> str:
    options = {name: f"--{name.replace('_', '-')}" for name in names}
    shown = _CODE.sub(lambda code: options.get(code[1], code[1]), " ".join(text.split()))
    # What None means is what happens without the option.
    return _NONE.sub("", shown).replace(". None is ", ". The default is ")


def _with(
    group: _Fields, made: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    def decorate(command: Callable[..., _Result]) -> Callable[..., _Result]:
        @wraps(command)
        def wrapper(**given: Any) -> _Result:
            own = {str(each.name): given.pop(str(each.name)) for each in group.options}
            return command(**given, **made(own))

        # Where click's own decorators keep what they add.
        options = cast("Any", wrapper).__dict__.setdefault("__click_params__", [])
        options.append(group)
        return wrapper

    return decorate


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _type(name: str, hint: object) -> Any:
    choices = [hint, *get_args(hint)]
    for choice in choices:
        if get_origin(choice) is Literal:
            return click.Choice(get_args(choice))
    if int in choices:
        return SIZE if name.endswith("_bytes") else click.IntRange(min=0)
    if float in choices:
        return NOT_NEGATIVE
    return str


def _shown(name: str, default: Any) -> str:
    if default == "":
        return "none"
    if name.endswith("_bytes"):
        for unit, size in _UNITS:
            if default and default % size == 0:
                return f"{default // size}{unit}"
    if isinstance(default, bool):
        return name.replace("_", "-") if default else f"no-{name.replace('_', '-')}"
    return f"{default:g}" if isinstance(default, float) else str(default)
