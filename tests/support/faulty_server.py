"""Faults inside of a server: imported before it starts, told by a file what to do.

``FAULTS`` names a file of JSON: ``decode_ms``, processor time that each read's decoding takes, and
``make_ms``, what the making of batches takes.
"""

from __future__ import annotations

import json
import os
import time
from hashlib import pbkdf2_hmac
from pathlib import Path
from typing import Any

from headrace.server.cache.stored_blocks import StoredForm
from headrace.server.stream.batch_maker import BatchMaker

_FILE = Path(os.environ["FAULTS"])
_verify, _make = StoredForm.verify, BatchMaker.make


def _asked(name: str) -> float:
    try:
        return float(json.loads(_FILE.read_text(encoding="utf-8")).get(name, 0)) / 1000
    except (OSError, ValueError):
        return 0.0


def _verify_slowly(self: StoredForm, *arguments: Any) -> Any:
    end = time.thread_time() + _asked("decode_ms")
    while time.thread_time() < end:
        # Releases Python's lock, as decoding does.
        pbkdf2_hmac("sha256", b"", b"", 2000)
    return _verify(self, *arguments)


def _make_slowly(self: BatchMaker, *arguments: Any) -> Any:
    end = time.thread_time() + _asked("make_ms")
    while time.thread_time() < end:
        pbkdf2_hmac("sha256", b"", b"", 2000)
    return _make(self, *arguments)


StoredForm.verify = _verify_slowly  # type: ignore[assignment, method-assign] # the fault
BatchMaker.make = _make_slowly  # type: ignore[assignment, method-assign] # the fault
