"""Check that the function of a dataset can be sent to a worker process."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

from headrace.arguments import shown
from headrace.errors import BadArgumentError


def check_travels(transform: Callable[..., Any] | None) -> None:
    """Refuse what no worker can import, before a worker ends without a word of the reason.

    Raises:
        BadArgumentError: It cannot be pickled, or is defined in a notebook or at a prompt.
    """
    try:
        sent = pickle.dumps(transform)
    except Exception as error:
        raise BadArgumentError(
            f"the dataset's transform cannot be sent to a worker process: {error}; expected a "
            f"function at the top of a module, or num_workers=0{_in_notebooks(transform)}",
            field="transform",
        ) from error
    if is_interactive() and b"__main__" in sent:
        raise BadArgumentError(
            f"the dataset's transform, {shown(transform)}, is defined in a notebook or at a "
            "prompt, which worker processes cannot import; expected a function of a module, or "
            f"num_workers=0{_in_notebooks(transform)}",
            field="transform",
        )


def is_interactive() -> bool:
    """Whether the main module is no file, so that no other process can import what it defines."""
    return not hasattr(sys.modules["__main__"], "__file__")


def _in_notebooks(transform: object) -> str:
    if not is_interactive():
        return ""
    name = getattr(transform, "__name__", "")
    name = name if name.isidentifier() else "prepare"
    return (
        f". In a notebook, begin the cell that defines it with `%%writefile transforms.py`, and "
        f"import it in the next one: `from transforms import {name}`"
    )
