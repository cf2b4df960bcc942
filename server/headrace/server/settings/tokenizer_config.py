"""Parse the tokenizers that an operator registers, each with a name and a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headrace.errors import ConfigurationError

_STATED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,39})=(?P<path>.+)")


def tokenizer_paths(stated: Iterable[str]) -> Mapping[str, str]:
    """Return the files of tokenizers by name.

    Args:
        stated: The settings, each as ``NAME=FILE``.

    Raises:
        ConfigurationError: A setting is invalid, or two share a name.
    """
    found: dict[str, str] = {}
    for text in stated:
        match = _STATED.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"{text!r} is not a tokenizer; expected NAME=FILE, with a name of up to 40 "
                "letters, digits, '.', '_' and '-'"
            )
        if match["name"] in found:
            raise ConfigurationError(f"two tokenizers are named {match['name']!r}; rename one")
        found[match["name"]] = match["path"]
    return found
