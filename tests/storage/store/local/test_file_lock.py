"""The lock of a folder, with and without the file system's help."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from headrace.errors import StoreUnavailableError
from headrace.storage import open_store
from headrace.storage.store.local.file_lock import held_by_name, locked

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


def _limit_files(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@pytest.fixture
def files_unlimited_again() -> Iterator[None]:
    """The limit of this process, for later tests."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    _limit_files(soft)


@pytest.mark.usefixtures("files_unlimited_again")
def test_a_full_disk_leaves_no_lock(tmp_path: Path) -> None:
    """Who could not write the file does not hold it, and the next one can."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    _limit_files(0)
    with pytest.raises(OSError, match="too large"), held_by_name(tmp_path / "l", deadline_s=0.0):
        pass
    _limit_files(soft)

    with held_by_name(tmp_path / "l", deadline_s=0.0):
        pass


@pytest.mark.usefixtures("files_unlimited_again")
def test_a_full_disk_leaves_no_part_of_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without links, where the object is written under its own name."""

    def refuse(_source: Path, _target: Path) -> None:
        _limit_files(4)
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    store = open_store(str(tmp_path))
    with pytest.raises(StoreUnavailableError):
        store.write_if_absent("x", bytes(100))

    assert [] == list(store.list())


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
