"""A conversion that fails leaves the disk as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# No file may have more than 10 bytes: the error of a disk that is full, which any user can cause.
_CONVERT = """
import resource, signal, sys
from headrace.converter import convert_files
from headrace.errors import StoreUnavailableError
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    convert_files(sys.argv[1], sys.argv[2], source_format="json")
except StoreUnavailableError as error:
    print(error.message)
"""

# Root may read everything, so it becomes nobody.
_REFUSED = """
import os, sys
from headrace.errors import StoreRefusedError
from headrace.storage import open_store
from headrace.storage.store.local import local_store
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
store = open_store(sys.argv[1])
for ask in (lambda: store.read("x"), lambda: store.write("x", b""), lambda: store.entry("x")):
    try:
        ask()
    except StoreRefusedError as error:
        print(error.message)
"""


@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_leaves_no_folder(tmp_path: Path, *, is_there: bool) -> None:
    """Neither the folder of the dataset nor those it is in, unless they were there before."""
    source, target = tmp_path / "a.jsonl", tmp_path / "out" / "d"
    source.write_text('{"x": 1}\n' * 1000)
    if is_there:
        target.mkdir(parents=True)

    found = subprocess.run(
        [sys.executable, "-c", _CONVERT, source, target],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert "File too large" in found.stdout
    assert is_there == (tmp_path / "out").exists()
    assert [] == sorted((tmp_path / "out").rglob("*") if not is_there else target.rglob("*"))


def test_a_refused_path_is_named(tmp_path: Path) -> None:
    """Often it is a folder on the way, and not the one that was asked for."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)

    found = subprocess.run(
        [sys.executable, "-c", _REFUSED, closed / "inner" / "d"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    lines = found.stdout.splitlines()
    assert 3 == len(lines)
    for line in lines:
        assert f"Permission denied at {closed}/inner" in line
        assert "check owner and mode, as user " in line
