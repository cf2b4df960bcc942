"""Combine a server's settings from the file, the environment and the command line.

Later sources win, in this order. Datasets are merged by name, so a flag may add a dataset to those
of the file, or serve another URL under one of its names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.arguments import joined_sources
from headrace.errors import ConfigurationError
from headrace.server.settings.config_file import read_config_file
from headrace.server.settings.from_mapping import from_mappings, stated_fields
from headrace.server.settings.plug_settings import plug_settings
from headrace.server.settings.server_config import ServerConfig

PREFIX = "HEADRACE_"

_OF_CLIENTS = frozenset({PREFIX + "TARGET", PREFIX + "TOKEN_FILE", PREFIX + "CA_FILE"})

# Settings that a single line of text cannot express.
_NOT_FROM_TEXT = frozenset({"datasets"})


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Where a configuration comes from, so that it can be read again.

    Attributes:
        file: The file of ``--config``; None for none.
        environment: The variables of the process, as they were when it started.
        flags: The options given on the command line, by name of the setting.
    """

    file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    flags: Mapping[str, object] = field(default_factory=dict)

    def load(self) -> ServerConfig:
        """Return the configuration as it is now.

        Raises:
            ConfigurationError: A part of it is invalid.
        """
        layers = [
            read_config_file(self.file, self.environment) if self.file else {},
            _from_environment(self.environment),
            dict(self.flags),
        ]
        stated: dict[str, object] = {}
        datasets: dict[str, object] = {}
        for layer in layers:
            named = layer.pop("datasets", {})
            if not isinstance(named, Mapping):
                raise ConfigurationError(
                    f"datasets is a value of type {type(named).__name__}; expected names and URLs"
                )
            datasets.update(named)
            stated.update(layer)
        settings = {"datasets": datasets, **stated}
        made: list[Any] = from_mappings(server_settings(), settings, where="")
        config: ServerConfig = made[0]
        return replace(config, plugs=tuple(made[1:]))


def server_settings() -> tuple[Any, ...]:
    """Return the classes whose fields are settings of a server: its own, and those of plugs."""
    return (ServerConfig, *plug_settings())


def ignored_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables that look like settings but are not, sorted.

    Kubernetes sets some for each service, so they are reported, not refused.
    """
    known = {PREFIX + name.upper() for name in (*_names(), "config")} | _OF_CLIENTS
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in known)


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {
        name: environment[PREFIX + name.upper()]
        for name in _names()
        if PREFIX + name.upper() in environment and name not in _NOT_FROM_TEXT
    }
    if PREFIX + "DATASETS" in environment:
        found["datasets"] = _named_urls(environment[PREFIX + "DATASETS"])
    return found


def _names() -> list[str]:
    return [one.name for kind in server_settings() for one in stated_fields(kind)]


def _named_urls(text: str) -> dict[str, object]:
    """Return the datasets in a text such as ``NAME=URL NAME=INDEX from SOURCE``."""
    found: dict[str, object] = {}
    for one in joined_sources(text.split()):
        name, equals, url = one.partition("=")
        if not (name and equals and url):
            raise ConfigurationError(
                f"{PREFIX}DATASETS has {one!r}; expected NAME=URL, separated by spaces"
            )
        found[name] = url
    return found
