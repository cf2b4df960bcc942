"""Report the progress of the first pass over text files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from headrace.converter.progress.progress import Progress
from headrace.converter.text.files import TextFile

_EVERY_S = 0.2  # arbitrary: often enough for a progress bar


class Checking:
    """Count checked text, in one thread, and report it at once and a few times a second."""

    def __init__(
        self,
        files: Sequence[TextFile],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        is_known = all(file.is_plain and file.stored_bytes for file in files)
        self._total = sum(file.stored_bytes for file in files) if is_known else 0
        self._progress = progress
        self._told_s: float | None = None
        self._checked = 0

    def add(self, checked_bytes: int) -> None:
        """Count some text."""
        self._checked += checked_bytes
        now = time.monotonic()
        if self._progress is None:
            return
        if self._told_s is None or now - self._told_s >= _EVERY_S:
            self._told_s = now
            left = max(0, self._total - self._checked)
            self._progress(
                Progress(0, 0, 0, 0, 0, checked_bytes=self._checked, unchecked_bytes=left)
            )
