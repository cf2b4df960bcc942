"""Where headrace runs: its parts import this early, so that elsewhere one sentence says so."""

from __future__ import annotations

import sys


def refuse_windows() -> None:
    """Refuse a system that has neither unix sockets with credentials nor locks of files.

    Raises:
        ImportError: It is Windows.
    """
    if sys.platform == "win32":
        raise ImportError(
            "headrace runs on Linux, not on Windows: install it in WSL 2 (`wsl --install`) or in a "
            "Linux container"
        )
