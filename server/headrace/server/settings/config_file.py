"""Read a configuration file: YAML, with secrets taken from the environment or from files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from headrace.errors import ConfigurationError

# A configuration with thousands of datasets takes a few hundred KiB; more is a mistake (arbitrary).
_MAX_BYTES = 16 * 1024 * 1024
# Settings have four levels, and options of fsspec a few more (arbitrary).
_MAX_DEPTH = 32
_REFERENCE = re.compile(r"\$\{(?:file:(?P<path>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}")


def read_config_file(path: Path, environment: Mapping[str, str]) -> dict[str, object]:
    """Return the contents of a configuration file by name of the setting.

    In any text, ``${NAME}`` is replaced by the value of that variable, and
    ``${file:/run/secrets/key}`` by the contents of that file, without white space at the ends, so
    the configuration need not contain secrets.

    An alias stands for a copy of its anchor's value: with all copies written out, the file may have
    at most 16 MiB and 32 levels.

    Raises:
        ConfigurationError: The file cannot be read, is not YAML, repeats a key, refers to something
            missing or to itself, or is too long or too deep. The message quotes nothing from the
            file.
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
        # Not chained: the error quotes the line, which may contain a secret.
        raise _refusal(path, f"is not YAML{at}: {_problem(error)}") from None
    except (yaml.YAMLError, RecursionError):
        raise _refusal(path, "is not YAML") from None
    if top is None:
        return {}
    if not isinstance(top, dict) or not all(isinstance(key, str) for key in top):
        raise _refusal(path, "must contain names of settings and their values")
    return {key: _resolved(value, key, path, environment) for key, value in top.items()}


class _Extent(NamedTuple):
    """The length and the depth of a part of the file, with its aliases written out."""

    length: int
    depth: int


class _Loader(yaml.SafeLoader):
    """Load YAML, but refuse some mistakes that its rules accept silently.

    These are repeated keys, aliases that contain themselves, and aliases that expand a small file
    to a large one. Nodes are counted as they are composed, children first, so nothing is ever
    written out.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._open_count = 0
        self._extents: dict[yaml.Node, _Extent] = {}

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs have no type for it
        self._open_count += 1
        # Here too, before the interpreter's own limit is reached.
        mark = event.start_mark
        self._check(_Extent(0, self._open_count), mark)
        node: yaml.Node = super().compose_node(parent, index)  # type: ignore[arg-type, assignment]  # an int or a node, and never None
        self._open_count -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._extents[node] = self._extent(node)
        elif node not in self._extents:
            raise yaml.MarkedYAMLError(
                problem="an alias is inside the value that it refers to; write its value out",
                problem_mark=mark,
            )
        self._check(self._extents[node], mark)
        return node

    def _extent(self, node: yaml.Node) -> _Extent:
        if isinstance(node, yaml.ScalarNode):
            return _Extent(1 + len(node.value), 1)
        nested = node.value if isinstance(node, yaml.SequenceNode) else chain(*node.value)
        extents = [self._extents[each] for each in nested]
        depth = max((each.depth for each in extents), default=0)
        return _Extent(2 + sum(each.length for each in extents), 1 + depth)

    def _check(self, extent: _Extent, mark: Any) -> None:  # one of two kinds of mark
        problem = ""
        if extent.depth > _MAX_DEPTH:
            problem = f"it has more than {_MAX_DEPTH} levels"
        elif extent.length > _MAX_BYTES:
            problem = f"with its aliases written out it has more than {_MAX_BYTES} characters"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - PyYAML's signature
    ) -> dict[Hashable, object]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = next((key for key, count in keys.items() if count > 1), None)
        if twice is not None:
            raise yaml.MarkedYAMLError(
                problem=f"the key {twice!r} occurs twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return the problem, without names: an unquoted secret can look like an alias or a tag."""
    found = str(error.problem)
    names = (yaml.composer.ComposerError, yaml.constructor.ConstructorError)
    return found.partition(" '")[0] if isinstance(error, names) else found


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
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise _refusal(path, f"refers to {found['path']} in {where}: {why}") from None


def _refusal(path: Path, found: str) -> ConfigurationError:
    return ConfigurationError(f"the configuration {path} {found}; see docs/operations.md")
