"""Check numbers among settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from headrace.errors import ConfigurationError


def check_numbers(
    settings: object, *, least: Mapping[str, int], positive: Iterable[str] = ()
) -> None:
    """Check that settings are finite and large enough.

    Args:
        settings: The object that has them.
        least: The least value of some, by name.
        positive: The names of those above 0.

    Raises:
        ConfigurationError: One is not.
    """
    for name, bound in least.items():
        if not bound <= getattr(settings, name) < math.inf:
            raise ConfigurationError(
                f"{name} is {getattr(settings, name)}; it must be {bound} or more, and finite"
            )
    for name in positive:
        if not 0 < getattr(settings, name) < math.inf:
            raise ConfigurationError(
                f"{name} is {getattr(settings, name)}; it must be above 0, and finite"
            )
