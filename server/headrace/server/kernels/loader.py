"""The compiled loops, where this installation has them.

They are loaded with the server, in less than a millisecond: nothing is compiled where headrace
runs. ``src/loops.c`` lists what the module has, and the files beside it say what its functions
take. Where there is none, or it was compiled from other sources, NumPy does the same.
"""

from __future__ import annotations

import importlib
import logging
from types import ModuleType

from headrace.server.kernels.compile import sources_digest

_LOG = logging.getLogger(__name__)
_NAME = "headrace.server.kernels._loops"
_HOW = (
    "batches are right all the same, and cost more processor time; with a C compiler and Python's "
    "headers on the machine, run `python -m headrace.server.kernels`, or install headrace "
    "again"
)


def load(name: str = _NAME) -> tuple[ModuleType | None, str]:
    """Load the loops.

    Returns:
        The module, or `None`, and then why there is none.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return None, "no compiler was there when headrace was installed"
    except ImportError as error:
        return None, f"the compiled loops cannot be loaded ({error})"
    try:
        is_current = sources_digest() == module.SOURCES
    except OSError:
        is_current = True  # installed without its sources, so nobody changed them
    if not is_current:
        return None, "the compiled loops are not those of the sources beside them"
    return module, ""


def log_loops() -> None:
    """Say in the log how batches will be gathered."""
    if LOOPS is not None:
        _LOG.info("batches are gathered by compiled loops")
    else:
        _LOG.warning("batches are gathered with NumPy: %s; %s", _WHY_NOT, _HOW)


LOOPS, _WHY_NOT = load()
