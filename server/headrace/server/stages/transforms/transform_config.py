"""Parse the transforms that an operator registers, each with a name, a function and a version."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import ConfigurationError
from headrace.order import IMAGES, TOKENIZER
from headrace.server.settings.plug_settings import by_name

_STATED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,39})="
    r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)"
    r"@(?P<version>[A-Za-z0-9][A-Za-z0-9._-]{0,19})"
)


@dataclass(frozen=True, slots=True)
class TransformConfig:
    """One registered transform.

    Attributes:
        name: Its name in requests.
        version: Part of tokens; must be changed whenever the results change.
        module: The module of the function.
        function: The function's name in the module.
    """

    name: str
    version: str
    module: str
    function: str

    @property
    def title(self) -> str:
        """Return its name in tokens and messages."""
        return f"{self.name}@{self.version}"


def transform_configs(stated: Iterable[str]) -> dict[str, TransformConfig]:
    """Return transforms by name.

    Args:
        stated: The settings, each as ``NAME=module:function@version``.

    Raises:
        ConfigurationError: A setting is invalid, or two share a name.
    """
    wanted = (
        "NAME=module:function@version, with a name of up to 40 and a version of up to 20 letters, "
        "digits, '.', '_' and '-'"
    )
    found = by_name(stated, _STATED, what="transform", wanted=wanted)
    for name in {IMAGES, TOKENIZER} & found.keys():
        raise ConfigurationError(
            f"a transform is named {name!r}, which is reserved for the server; rename it"
        )
    return {name: TransformConfig(**parts) for name, parts in found.items()}
