"""The settings of stages: each folder of `headrace.server.stages` has its own."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Self

from headrace.errors import ConfigurationError

_FOLDERS = "headrace.server.stages"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """What an operator may set for the stages of one folder: the fields of a subclass.

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


def stage_folders() -> list[ModuleType]:
    """Return the installed folders of stages, each with its `Plug`."""
    package = importlib.import_module(_FOLDERS)
    names = sorted(each.name for each in pkgutil.iter_modules(package.__path__) if each.ispkg)
    return [importlib.import_module(f"{_FOLDERS}.{name}") for name in names]


def stage_settings() -> list[type[StageSettings]]:
    """Return the settings of the installed stages."""
    kinds = [folder.Plug.settings for folder in stage_folders()]
    return [kind for kind in kinds if kind is not StageSettings]
