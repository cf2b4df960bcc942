"""The transforms that an operator registers: a name, a version, and where the function is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import ConfigurationError
from headrace.order import IMAGES, TOKENIZER

_STATED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,39})="
    r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)"
    r"@(?P<version>[A-Za-z0-9][A-Za-z0-9._-]{0,19})"
)


@dataclass(frozen=True, slots=True)
class TransformConfig:
    """One registered transform.

    Attributes:
        name: What requests call it.
        version: Stands in tokens; to be changed whenever its results change.
        module: Where the function is.
        function: Its name there.
    """

    name: str
    version: str
    module: str
    function: str

    @property
    def title(self) -> str:
        """What tokens and messages call it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class StepVersion:
    """What a token says of one step that the operator has registered something for.

    Attributes:
        name: The name of the transform, or `TOKENIZER`.
        version: Its version.
    """

    name: str
    version: str

    @property
    def title(self) -> str:
        """What tokens and messages call it."""
        return f"{self.name}@{self.version}"


def transform_configs(stated: Iterable[str]) -> dict[str, TransformConfig]:
    """Return transforms by name.

    Args:
        stated: Each as ``NAME=module:function@version``.

    Raises:
        ConfigurationError: One is none, or two share a name.
    """
    found: dict[str, TransformConfig] = {}
    for text in stated:
        match = _STATED.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"the transform {text!r} is none; expected NAME=module:function@version, with a "
                "name of up to 40 and a version of up to 20 letters, digits, '.', '_' and '-'"
            )
        config = TransformConfig(**match.groupdict())
        if config.name in {IMAGES, TOKENIZER}:
            raise ConfigurationError(
                f"a transform is called {config.name!r}, which tokens call the server's own; "
                "rename it"
            )
        if config.name in found:
            raise ConfigurationError(f"two transforms are called {config.name!r}; rename one")
        found[config.name] = config
    return found
