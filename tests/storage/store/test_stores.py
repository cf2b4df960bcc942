"""All stores keep the same promises; S3 tells absence, refusal and throttling apart."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    ConfigurationError,
    HeadraceError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage import (
    RetryPolicy,
    Store,
    StoreOptions,
    open_store,
    options_with_environment,
)
from headrace.storage.store.retry import call_with_retries
from support.s3 import S3

_LONGEST_PATH = 4090  # with the name of one more folder it is more than Linux takes
_NO_RETRY = RetryPolicy(attempts=1)
_SECRET = "very-secret"  # noqa: S105 - and wrong


@pytest.fixture(params=["local", "file", "s3", "memory"])
def store(request: pytest.FixtureRequest, s3: S3, tmp_path: Path) -> Store:
    """Each kind of store in turn, empty."""
    urls = {
        "local": str(tmp_path / "root"),
        "file": (tmp_path / "root").as_uri(),
        "s3": s3.url("root"),
        "memory": f"memory://{s3.prefix}",
    }
    return open_store(urls[request.param])


def test_reads_are_ranges(store: Store) -> None:
    """Ranges are exact, and end where the object does."""
    store.write("a/b.bin", bytes(range(100)))

    assert bytes(range(100)) == store.read("a/b.bin")
    assert bytes(range(10, 15)) == store.read("a/b.bin", offset=10, length=5)
    assert bytes(range(95, 100)) == store.read("a/b.bin", offset=95, length=50)
    assert store.read("a/b.bin", offset=100, length=5) == b""
    assert store.read("a/b.bin", length=0) == b""


def test_absence_is_its_own_error(store: Store) -> None:
    """What is not there is told so, by name; deleting it is no error."""
    store.delete("nothing/here")

    with pytest.raises(ObjectNotFoundError, match="nothing/here"):
        store.read("nothing/here")


def test_names_are_listed_by_prefix(store: Store) -> None:
    """Listing gives relative names, and a deleted object is gone from it."""
    for name in ("x/1", "x/2", "y/1", "top"):
        store.write(name, b"")
    store.delete("x/2")

    assert {"x/1", "y/1", "top"} == set(store.list())
    assert {"x/1"} == set(store.list("x/"))


def test_conditional_writes(store: Store) -> None:
    """One writes where nothing is, or replaces what it has read, or is told of the conflict."""
    store.write_if_absent("p", b"first")
    with pytest.raises(CommitConflictError):
        store.write_if_absent("p", b"second")
    content, version = store.read_versioned("p")
    store.write_if_unchanged("p", b"third", version)
    with pytest.raises(CommitConflictError):
        store.write_if_unchanged("p", b"fourth", version)

    assert (b"first", b"third") == (content, store.read("p"))


@pytest.mark.parametrize("size", [0, 100, (8 << 20) + 1, 20 << 20])
def test_written_pieces_are_one_object(store: Store, size: int) -> None:
    """A writer makes one object of its pieces, of any size, and only when it is closed."""
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    writer = store.open_writer("big")
    for start in range(0, size, 3 << 20):
        writer.write(content[start : start + (3 << 20)])
    writer.close()
    writer.abort()

    assert content == store.read("big")


def test_aborted_objects_never_were(store: Store) -> None:
    """After abort there is no object, and no upload that waits."""
    writer = store.open_writer("big")
    writer.write(bytes(9 << 20))
    writer.abort()

    assert list(store.list()) == []
    with pytest.raises(ObjectNotFoundError):
        store.read("big")


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", "", "a\\b", "a\0b", "x" * 600])
def test_names_never_lead_out(store: Store, name: str) -> None:
    """A name that could leave the root is refused before the store is asked."""
    with pytest.raises(BadArgumentError, match="object name"):
        store.read(name)


def test_s3_refusal_names_the_key_and_not_the_secret(s3: S3) -> None:
    """A wrong secret: which key was used is told, the secret never is."""
    options = StoreOptions(access_key=s3.weed.access_key, secret_key=_SECRET, retry=_NO_RETRY)
    store = open_store(s3.url("x"), options=options)

    with pytest.raises(StoreRefusedError, match=s3.weed.access_key) as caught:
        store.read("y")

    assert _SECRET not in str(caught.value) + repr(options) + repr(caught.value.metadata)


def test_s3_anonymous_access_is_refused_as_such(s3: S3) -> None:
    """Unsigned requests to a closed bucket are told to be anonymous."""
    store = open_store(s3.url("x"), options=StoreOptions(anonymous=True, retry=_NO_RETRY))

    with pytest.raises(StoreRefusedError, match="anonymous access"):
        store.read("y")


def test_s3_without_a_bucket_says_so(s3: S3) -> None:
    """A bucket that is not there is told as absence."""
    store = open_store("s3://no-such-bucket-here/x")

    with pytest.raises(ObjectNotFoundError, match="s3://no-such-bucket-here/x/y"):
        store.read("y")
    assert s3.weed.bucket != "no-such-bucket-here"


def test_an_unreachable_store_is_told_with_attempts(s3: S3) -> None:
    """No one listens: unavailable, after how many attempts, not a hang."""
    options = StoreOptions(
        endpoint="http://127.0.0.1:9", retry=RetryPolicy(attempts=3, base_s=0.001)
    )
    store = open_store(s3.url("x"), options=options)

    with pytest.raises(StoreUnavailableError, match=r"could not be reached.*after 3 attempts"):
        store.read("y")


def test_retries_wait_with_full_jitter_and_a_budget() -> None:
    """Waits are uniform below a doubling bound with a cap, and no attempt passes the budget."""
    waits: list[float] = []
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    def fail() -> None:
        raise StoreUnavailableError("busy")

    policy = RetryPolicy(attempts=99, base_s=1, cap_s=4, budget_s=10)
    with pytest.raises(StoreUnavailableError, match=r"busy; gave up after 5 attempts in 8\.2 s"):
        call_with_retries(fail, policy, sleep=sleep, clock=lambda: now, uniform=lambda: 0.75)

    assert waits == [0.75, 1.5, 3.0, 3.0]


@pytest.mark.parametrize("url", ["", "s3://", "s3:///x", "nope://x", "file://host/x"])
def test_urls_that_name_no_store_are_refused(url: str) -> None:
    """A URL without a root, or of an unknown scheme, is a caller's error."""
    with pytest.raises(BadArgumentError):
        open_store(url)


def test_options_are_checked() -> None:
    """A key without its secret, a timeout of zero, no attempt: refused with the value."""
    with pytest.raises(BadArgumentError, match="belong together"):
        StoreOptions(access_key="a")
    with pytest.raises(BadArgumentError, match="timeouts are 0"):
        StoreOptions(connect_timeout_s=0)
    with pytest.raises(BadArgumentError, match="attempts is 0"):
        RetryPolicy(attempts=0)


def test_options_carry_the_environment() -> None:
    """What the driver's variables say is in what executors get; what is set wins; they pickle."""
    environment = {
        "AWS_ENDPOINT_URL": "http://a",
        "AWS_REGION": "r",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_SESSION_TOKEN": "hidden too",
    }

    filled = options_with_environment(StoreOptions(region="mine"), environment)
    own = options_with_environment(StoreOptions(anonymous=True), environment)

    assert ("http://a", "mine", "k", "hidden") == (
        filled.endpoint,
        filled.region,
        filled.access_key,
        filled.secret_key,
    )
    assert own.access_key is None
    assert pickle.loads(pickle.dumps(filled)) == filled
    assert "hidden" not in repr(filled)
    assert replace(filled, retry=_NO_RETRY).retry.attempts == 1


def test_local_trouble_is_told_by_kind(tmp_path: Path) -> None:
    """A file where a folder should be is an error of ours with the path."""
    (tmp_path / "file").write_text("x")
    store = open_store(str(tmp_path / "file"))

    with pytest.raises(HeadraceError, match=str(tmp_path / "file")):
        store.write("x", b"")


@pytest.mark.parametrize("method", ["list", "list_entries", "list_unfinished"])
@pytest.mark.parametrize("name", ["others", "lost+found"])
def test_folders_that_cannot_be_read_are_not_empty(tmp_path: Path, method: str, name: str) -> None:
    """All listings say so, unless it is the system's own folder, or they need not look there."""
    store = open_store(str(tmp_path))
    store.write("shards/a", b"")
    _make_too_deep(tmp_path, name)

    assert [["shards/a"], ["shards/a"]] == [
        list(store.list("shards/")),
        [entry.name for entry in store.list_entries("shards/")],
    ]
    if name == "lost+found":
        list(getattr(store, method)())
        return
    with pytest.raises(StoreUnavailableError, match="name too long"):
        list(getattr(store, method)())


def _make_too_deep(root: Path, last: str) -> None:
    """Make folders in one another; the path of the last is so long that nobody can read it."""
    parts = 20
    length, rest = divmod(_LONGEST_PATH - len(str(root)), parts)
    descriptor = os.open(root, os.O_RDONLY)
    for name in [*("x" * (length - 1 + (part < rest)) for part in range(parts)), last]:
        os.mkdir(name, dir_fd=descriptor)
        inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("dbfs:/Volumes/main/default/v/x", "/Volumes/main/default/v/x"),
        ("dbfs:///Volumes/main/default/v/x/", "/Volumes/main/default/v/x"),
        ("dbfs:/mnt/data", "/dbfs/mnt/data"),
    ],
)
def test_paths_of_databricks_are_where_its_machines_see_them(url: str, path: str) -> None:
    """Volumes of Unity Catalog are files; Spark and we call them by the same names."""
    if Path("/dbfs").is_mount():
        assert path == open_store(url).url
        return
    with pytest.raises(ConfigurationError, match=f"is {path}/? on the machines of Databricks"):
        open_store(url)
