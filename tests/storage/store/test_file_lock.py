"""The lock of a folder, with and without the file system's help."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from headrace.errors import StoreUnavailableError
from headrace.storage.store.file_lock import held_by_name, locked

DEADLINE_S = 60.0


class Lock(Protocol):
    """Either of the two."""

    def __call__(self, path: Path, *, deadline_s: float) -> AbstractContextManager[None]:
        """Hold it."""


@pytest.mark.parametrize("lock", [locked, held_by_name])
def test_one_holds_it_at_a_time(tmp_path: Path, lock: Lock) -> None:
    """Eight threads that each add to a file 25 times lose no addition."""
    count = tmp_path / "count"
    count.write_text("0")

    def add(_: int) -> None:
        for _ in range(25):
            with lock(tmp_path / ".lock", deadline_s=DEADLINE_S):
                count.write_text(str(int(count.read_text()) + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))

    assert "200" == count.read_text()


def test_the_file_is_gone_when_its_holder_is_done(tmp_path: Path) -> None:
    """Also after an error; the next one needs no deadline."""
    with pytest.raises(ZeroDivisionError), held_by_name(tmp_path / ".held", deadline_s=0.0):
        _ = 1 / 0
    with held_by_name(tmp_path / ".held", deadline_s=0.0):
        held = list(tmp_path.iterdir())

    assert [tmp_path / ".held"] == held
    assert [] == list(tmp_path.iterdir())


def test_a_lock_that_stays_is_told_with_its_holder(tmp_path: Path) -> None:
    """The error names the file to remove, the process and the machine."""
    path = tmp_path / ".held"
    with (
        held_by_name(path, deadline_s=0.0),
        pytest.raises(StoreUnavailableError) as caught,
        held_by_name(path, deadline_s=0.0),
    ):
        pass

    assert str(path) in caught.value.message
    assert f"process {os.getpid()} on " in caught.value.message
    assert "remove the file" in caught.value.message


def test_a_lock_of_the_system_names_no_file_to_remove(tmp_path: Path) -> None:
    """Its file is empty, and removing it would let two in."""
    path = tmp_path / ".lock"
    with (
        locked(path, deadline_s=0.0),
        pytest.raises(StoreUnavailableError) as caught,
        locked(path, deadline_s=0.0),
    ):
        pass

    assert "stuck" in caught.value.message
    assert "remove" not in caught.value.message
