"""Refuse systems that headrace does not run on, with one sentence; its parts import this early."""

from __future__ import annotations

import sys


def refuse_windows() -> None:
    """Refuse Windows, which has neither unix sockets with credentials nor POSIX file locks.

    Raises:
        ImportError: The system is Windows.
    """
    if sys.platform == "win32":
        raise ImportError(
            "headrace runs on Linux, not on Windows: install it in WSL 2 (`wsl --install`) or in a "
            "Linux container"
        )
