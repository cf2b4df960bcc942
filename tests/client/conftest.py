"""What tests of private servers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.private import end_servers


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of one's own, empty of servers afterwards."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    end_servers(tmp_path)
