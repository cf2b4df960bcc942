"""Load the compiled loops, without which the server does not work.

They are loaded with the server, in less than a millisecond; nothing is compiled at runtime.
``src/loops.c`` lists the functions of the module, and the files beside it describe their arguments.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from headrace.errors import ConfigurationError
from headrace.server.kernels.compile import sources_digest

_NAME = "headrace.server.kernels._loops"
_HOW = (
    "install a wheel for this platform; from a clone, run `python -m headrace.server.kernels` or "
    "install headrace again, with a C compiler or `pip install ziglang`"
)


def load(name: str = _NAME) -> ModuleType:
    """Load the loops.

    Raises:
        ConfigurationError: They are missing, cannot be loaded, or belong to other sources.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _unusable("are missing: headrace was installed without a C compiler") from error
    except ImportError as error:
        raise _unusable(f"cannot be loaded ({error})") from error
    try:
        is_current = sources_digest() == module.SOURCES
    except OSError:
        is_current = True  # installed without its sources, so they cannot have changed
    if not is_current:
        raise _unusable("were compiled from other sources")
    return module


def _unusable(why: str) -> ConfigurationError:
    return ConfigurationError(f"the server's compiled loops {why}; {_HOW}")


LOOPS = load()
