"""File systems of fsspec fail in ways of their own; the store tells and retries them all."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from headrace.errors import (
    CommitConflictError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage import RetryPolicy, Store, StoreOptions, open_store


class _PackageError(Exception):
    """An error of a package that knows nothing of `OSError`."""

    def __init__(self, status: int = 0) -> None:
        super().__init__(f"status {status}")
        self.status = status


class _Given(Exception):  # noqa: N818 - it is given, and not raised
    """Content that a file system gives in place of its own."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content


class _Faulty(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """Fails each operation that is named in ``faults``, before or after it is done.

    It fails once, or ``always``, before it is done.
    """

    protocol = "faulty"
    store: dict[str, object] = {}  # noqa: RUF012 - as in the class above
    pseudo_dirs = [""]  # noqa: RUF012 - likewise
    faults: dict[str, tuple[str, Exception]] = {}  # noqa: RUF012 - set by tests

    def _do(self, name: str, *args: object, **kwargs: object) -> object:
        when, error = self.faults.get(name, ("", None))
        if when != "always":
            self.faults.pop(name, None)
        if isinstance(error, _Given):
            return error.content
        if error is not None and when != "after":
            raise error
        done = getattr(super(), name)(*args, **kwargs)
        if error is not None:
            raise error
        return done

    def cat_file(self, *args: object, **kwargs: object) -> object:
        return self._do("cat_file", *args, **kwargs)

    def pipe_file(self, *args: object, **kwargs: object) -> object:
        return self._do("pipe_file", *args, **kwargs)

    def put_file(self, *args: object, **kwargs: object) -> object:
        return self._do("put_file", *args, **kwargs)

    def find(self, *args: object, **kwargs: object) -> object:
        return self._do("find", *args, **kwargs)

    def info(self, *args: object, **kwargs: object) -> object:
        return self._do("info", *args, **kwargs)

    def rm_file(self, *args: object, **kwargs: object) -> object:
        return self._do("rm_file", *args, **kwargs)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    fsspec.register_implementation("faulty", _Faulty, clobber=True)
    yield
    _Faulty.store.clear()
    _Faulty.faults.clear()


def _store(attempts: int) -> Store:
    return open_store(
        "faulty://root", options=StoreOptions(retry=RetryPolicy(attempts=attempts, base_s=0.001))
    )


def test_every_operation_is_tried_again() -> None:
    """One fault of each is not seen, also if it is an error of the package's own."""
    store = _store(2)
    for name in ("cat_file", "pipe_file", "put_file", "find", "info", "rm_file"):
        _Faulty.faults[name] = ("before", _PackageError(500))
    store.write("a", b"content")
    writer = store.open_writer("b")
    writer.write(b"more")
    writer.close()

    assert ["a", "b"] == sorted(store.list())
    assert (b"content", b"more") == (store.read("a"), store.read("b"))
    assert store.entry("a") is not None
    store.delete("a")
    assert ["b"] == list(store.list())
    assert {} == _Faulty.faults


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (_PackageError(), StoreUnavailableError),
        (_PackageError(503), StoreUnavailableError),
        (_PackageError(403), StoreRefusedError),
        (_PackageError(404), ObjectNotFoundError),
        (NotImplementedError("rm"), StoreRefusedError),
        (PermissionError("no"), StoreRefusedError),
    ],
)
def test_errors_of_packages_are_told_by_kind(error: Exception, wanted: type[Exception]) -> None:
    """Whatever a package raises becomes one of the errors that a store promises."""
    store = _store(1)
    store.write("a", b"content")
    _Faulty.faults["cat_file"] = ("always", error)

    with pytest.raises(wanted, match="a in faulty://root"):
        store.read("a")


@pytest.mark.parametrize("error", [_PackageError(403), _PackageError(401), PermissionError("no")])
def test_a_refusal_reads_credentials_again_once(error: Exception) -> None:
    """Files of credentials may have changed: the file system is opened again, and not each time."""
    store = _store(1)
    store.write("a", b"content")

    _Faulty.faults["cat_file"] = ("before", error)
    assert b"content" == store.read("a")
    _Faulty.faults["cat_file"] = ("before", error)
    with pytest.raises(StoreRefusedError):
        store.read("a")


def test_a_whole_object_for_a_part_is_refused() -> None:
    """A file system that ignores ranges, or gives less than there is, is not believed."""
    store = _store(1)
    store.write("a", b"content")
    assert b"ent" == store.read("a", offset=4, length=9)
    assert b"" == store.read("a", offset=9, length=1)

    for given in (b"content", b"c"):
        _Faulty.faults["cat_file"] = ("always", _Given(given))
        with pytest.raises(StoreUnavailableError, match="other bytes than requested"):
            store.read("a", offset=2, length=3)


def test_a_writer_that_gives_up_leaves_what_was_there() -> None:
    """An older object of the name stays, and what cannot be sent is told."""
    store = _store(1)
    store.write("big", b"old")
    writer = store.open_writer("big")
    writer.write(bytes(9 << 20))
    writer.abort()
    assert b"old" == store.read("big")

    _Faulty.faults["put_file"] = ("before", _PackageError())
    writer = store.open_writer("big")
    writer.write(b"new")
    with pytest.raises(StoreUnavailableError):
        writer.close()
    writer.abort()
    assert b"old" == store.read("big")


def test_a_marker_of_a_lost_answer_blocks_nobody() -> None:
    """The write of a marker arrived but failed: it is removed, and the next commit succeeds."""
    store = _store(1)
    _Faulty.faults["pipe_file"] = ("after", _PackageError())

    with pytest.raises(StoreUnavailableError):
        store.write_if_absent("p", b"first")
    assert [] == list(store.list("commits/"))
    store.write_if_absent("p", b"first")
    with pytest.raises(CommitConflictError):
        store.write_if_absent("p", b"second")
    assert b"first" == store.read("p")


def test_files_of_others_block_no_commit() -> None:
    """A folder of theirs may have the name of the folder of markers."""
    store = _store(1)
    store.write("commits/2026-11.log", b"theirs")
    store.write_if_absent("p", b"first")

    assert (b"first", ["commits/2026-11.log"]) == (store.read("p"), list(store.list("commits/")))


def test_a_marker_that_stays_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A commit has succeeded although its marker cannot be removed; a warning names the marker."""
    store = _store(1)
    _Faulty.faults["rm_file"] = ("before", _PackageError())
    store.write_if_absent("p", b"first")

    assert b"first" == store.read("p")
    assert next(store.list("commits/")) in caplog.text
