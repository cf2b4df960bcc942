"""Load the compiled loops, if this installation has them.

They are loaded with the server, in less than a millisecond; nothing is compiled at runtime.
``src/loops.c`` lists the functions of the module, and the files beside it describe their arguments.
If there is no module, or it was compiled from other sources, NumPy does the same.
"""

from __future__ import annotations

import importlib
import logging
from types import ModuleType

from headrace.server.kernels.compile import sources_digest

_LOG = logging.getLogger(__name__)
_NAME = "headrace.server.kernels._loops"
_HOW = (
    "batches are the same but cost more processor time; with a C compiler and Python's headers on "
    "the machine, run `python -m headrace.server.kernels` or reinstall headrace"
)


def load(name: str = _NAME) -> tuple[ModuleType | None, str]:
    """Load the loops.

    Returns:
        The module, or `None` and the reason.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return None, "no compiler was found when headrace was installed"
    except ImportError as error:
        return None, f"the compiled loops cannot be loaded ({error})"
    try:
        is_current = sources_digest() == module.SOURCES
    except OSError:
        is_current = True  # installed without its sources, so they cannot have changed
    if not is_current:
        return None, "the compiled loops do not match their sources"
    return module, ""


def log_loops() -> None:
    """Log how batches will be gathered."""
    if LOOPS is not None:
        _LOG.info("batches are gathered by compiled loops")
    else:
        _LOG.warning("batches are gathered with NumPy: %s; %s", _WHY_NOT, _HOW)


LOOPS, _WHY_NOT = load()
