"""The compiled loops, for tests of what they do."""

from __future__ import annotations

from types import ModuleType

import pytest

from headrace.server.kernels.loader import LOOPS


def compiled_loops() -> ModuleType:
    """Return the loops; where there is no C compiler there is nothing to test."""
    if LOOPS is None:
        pytest.skip("there are no compiled loops: this machine has no C compiler")
    return LOOPS
