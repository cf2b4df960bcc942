"""The compiled kernels, once they are there.

Numba is optional, and what it compiles it keeps on disk; loading that takes half a second all the
same, and the first time on a machine some seconds. So a stream that goes on for a while asks for
the kernels, they are loaded beside it, and whoever gathers next uses them. Until then, and without
Numba, the same is done with NumPy.

Contract:

1. `compiled` never waits.
2. `load` begins the loading at most once in a process, and never raises. How it ended is logged.
3. A process that ends waits for the kernel that is being compiled, and for no further one.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_log = logging.getLogger(__name__)

WORTH_LOADING_BYTES = 32 << 20
"""A stream that sent so much goes on long enough for the kernels to pay for their loading."""


class Loader:
    """Loads a module of kernels in a thread of its own.

    Args:
        name: Of the module.
        needs: The package that it needs.
    """

    def __init__(self, name: str, needs: str) -> None:
        self._name = name
        self._needs = needs
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self.module: ModuleType | None = None

    def load(self) -> None:
        """Begin to load, if nobody has; returns at once."""
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="headrace-kernels", daemon=True)
            self._thread.start()
        atexit.register(self.end)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is known whether there are kernels; return whether there are."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.module is not None

    def end(self) -> None:
        """Compile no further kernel, and wait for the one that is being compiled."""
        self._is_over = True
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Stop the loading if the process ends; called before each kernel.

        Raises:
            ImportError: It does.
        """
        if self._is_over:
            raise ImportError("the process ends, so no further kernel is compiled")

    def _run(self) -> None:
        if importlib.util.find_spec(self._needs) is None:
            _log.info(
                "batches are gathered with NumPy: %s is not installed, with which it is faster",
                self._needs,
            )
            return
        began = time.monotonic()
        try:
            self.module = importlib.import_module(self._name)
        except Exception:  # noqa: BLE001 - whatever ails it, NumPy does the same
            if not self._is_over:
                _log.exception(
                    "batches are gathered with NumPy: %s is installed and does not work; they are "
                    "right, and cost more processor time",
                    self._needs,
                )
            return
        _log.info(
            "batches are gathered by compiled code, loaded in %.1f s", time.monotonic() - began
        )


KERNELS = Loader("headrace.server.kernels.compiled", "numba")
