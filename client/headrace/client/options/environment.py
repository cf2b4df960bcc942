"""What variables of the environment say, where the program says nothing.

They are the last resort: an argument, also an empty `Access()`, is never changed by them. Of a
private server nobody is told a token, since it is reached without `Access`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from headrace.errors import ConfigurationError

TARGET, TOKEN_FILE, CA_FILE = "HEADRACE_TARGET", "HEADRACE_TOKEN_FILE", "HEADRACE_CA_FILE"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def target_for(datasets: Iterable[str]) -> list[str] | None:
    """Return the servers to ask for datasets if the program names none; None for a private one.

    A private server serves URLs and paths, others serve names: so these decide.

    Args:
        datasets: Names on a server, or URLs.
    """
    stated = [part.strip() for part in os.environ.get(TARGET, "").split(",") if part.strip()]
    names = list(datasets)
    if not stated or not names or not all(_NAME.fullmatch(name) for name in names):
        return None
    return stated


def ca_file() -> Path | None:
    """Return the certificates to trust; None for plain text."""
    stated = os.environ.get(CA_FILE, "")
    return Path(stated) if stated else None


def token_reader() -> partial[str] | None:
    """Return a function that reads the bearer token; None without one."""
    stated = os.environ.get(TOKEN_FILE, "")
    return partial(read_token, Path(stated)) if stated else None


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        ConfigurationError: The file cannot be read, or is empty.
    """
    try:
        token = path.read_text().strip()
        why = "" if token else "it is empty"
    except (OSError, ValueError) as error:
        why = str(error.strerror) if isinstance(error, OSError) else "it is not text"
    if why:
        raise ConfigurationError(
            f"cannot read the token in {path} ({why}); give a file that contains only a token"
        )
    return token
