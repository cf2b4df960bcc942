"""Show a configuration as YAML, without its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, is_dataclass
from typing import Any

import yaml

from headrace.server.settings.from_mapping import stated_fields
from headrace.server.settings.server_config import ServerConfig
from headrace.storage import HIDDEN, safe_url


def config_text(config: ServerConfig) -> str:
    """Return every setting with its value, as YAML that ``--config`` accepts.

    Fields that ``repr`` leaves out are hidden, as are users, passwords and queries in URLs.
    """
    shown = _shown_fields(config)
    for each in config.plugs:
        shown |= _shown_fields(each)
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def _shown_fields(value: Any) -> dict[str, object]:
    return {one.name: _shown_field(one, getattr(value, one.name)) for one in stated_fields(value)}


def _shown(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _shown_fields(value)
    if isinstance(value, Mapping):
        return {str(key): _shown(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_shown(one) for one in value]
    if isinstance(value, str):
        return safe_url(value)
    return value


def _shown_field(one: Field[object], value: object) -> object:
    if one.name.endswith("_mode"):
        return f"{value:o}"
    if one.repr or value is None:
        return _shown(value)
    if isinstance(value, Mapping):
        return dict.fromkeys(map(str, value), HIDDEN)
    return HIDDEN
