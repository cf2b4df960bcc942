"""The settings of plugs: each folder of stages and of transports has its own."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Self

from headrace.errors import ConfigurationError

STAGES = "headrace.server.stages"
TRANSPORTS = "headrace.server.transports"
"""The packages of plugs that have settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlugSettings:
    """What an operator may set for one folder: the fields of a subclass.

    They are settings like those of `ServerConfig`, in files, in the environment and on the command
    line, so their names differ from all others.
    """

    def of_worker(self, worker_count: int) -> Self:
        """Return the settings of one of several processes, which share what is limited."""
        del worker_count
        return self


def by_name(
    stated: Iterable[str], form: re.Pattern[str], *, what: str, wanted: str
) -> dict[str, dict[str, str]]:
    """Return the parts of settings such as ``NAME=FILE``, by their group ``name``.

    Args:
        stated: The settings.
        form: Their form, with a group for each part.
        what: What they state, for errors.
        wanted: The form in words.

    Raises:
        ConfigurationError: A setting has another form, or two share a name.
    """
    found: dict[str, dict[str, str]] = {}
    for text in stated:
        match = form.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"{text!r} is not a {what}; expected {wanted}")
        if match["name"] in found:
            raise ConfigurationError(f"two {what}s are named {match['name']!r}; rename one")
        found[match["name"]] = match.groupdict()
    return found


def folders_of(package_name: str) -> list[ModuleType]:
    """Return the installed folders of a package of plugs, each with its `Plug`."""
    package = importlib.import_module(package_name)
    names = sorted(each.name for each in pkgutil.iter_modules(package.__path__) if each.ispkg)
    return [importlib.import_module(f"{package_name}.{name}") for name in names]


def plug_settings() -> list[type[PlugSettings]]:
    """Return the settings of the installed plugs."""
    folders = (*folders_of(STAGES), *folders_of(TRANSPORTS))
    kinds = [folder.Plug.settings for folder in folders]
    return [kind for kind in kinds if kind is not PlugSettings]
