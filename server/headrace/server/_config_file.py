"""Read a configuration file: YAML, with secrets taken from the environment or from files."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path

import yaml

from headrace.errors import ConfigurationError

# A configuration of thousands of datasets is some hundred KiB; more is a mistake (arbitrary).
_MAX_BYTES = 16 * 1024 * 1024
_REFERENCE = re.compile(r"\$\{(?:file:(?P<path>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}")


def read_config_file(path: Path, environment: Mapping[str, str]) -> dict[str, object]:
    """Return what a file says, by name of the setting.

    In any text ``${NAME}`` becomes the value of that variable, and ``${file:/run/secrets/key}``
    what that file holds, without white space at its ends: so no secret need stand in the file.

    Raises:
        ConfigurationError: It cannot be read, is no YAML, says a thing twice, or refers to what is
            not there. No content of the file is quoted.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refusal(path, f"cannot be read ({error.strerror})") from error
    if len(content) > _MAX_BYTES:
        raise _refusal(path, f"has {len(content)} bytes, more than {_MAX_BYTES}")
    try:
        top = yaml.load(content, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        # Not chained: the error quotes the line, which may hold a secret.
        raise _refusal(path, f"is no YAML{at}: {error.problem}") from None
    except (yaml.YAMLError, RecursionError):
        raise _refusal(path, "is no YAML") from None
    if top is None:
        return {}
    if not isinstance(top, dict) or not all(isinstance(key, str) for key in top):
        raise _refusal(path, "must be names of settings and their values")
    return {key: _resolved(value, key, path, environment) for key, value in top.items()}


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML's own rules quietly take the last."""

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - PyYAML's signature
    ) -> dict[Hashable, object]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.MarkedYAMLError(
                problem=f"the key {twice!r} stands twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


def _resolved(value: object, where: str, path: Path, environment: Mapping[str, str]) -> object:
    """Replace all references below a value."""
    if isinstance(value, dict):
        return {
            key: _resolved(one, f"{where}.{key}", path, environment) for key, one in value.items()
        }
    if isinstance(value, list):
        return [_resolved(one, where, path, environment) for one in value]
    if not isinstance(value, str):
        return value
    return _REFERENCE.sub(lambda found: _referred(found, where, path, environment), value)


def _referred(found: re.Match[str], where: str, path: Path, environment: Mapping[str, str]) -> str:
    if found["name"]:
        if found["name"] not in environment:
            raise _refusal(path, f"refers to ${{{found['name']}}} in {where}, which is not set")
        return environment[found["name"]]
    try:
        return Path(found["path"]).read_text().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _refusal(path, f"refers to {found['path']} in {where}: {why}") from None


def _refusal(path: Path, found: str) -> ConfigurationError:
    return ConfigurationError(f"the configuration {path} {found}; see docs/operations.md")
