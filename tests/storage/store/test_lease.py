"""Credentials that a vendor gives for a while: renewed ahead, once, and never guessed at."""

from __future__ import annotations

import logging
import pickle
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from headrace.errors import StoreRefusedError, StoreUnavailableError, WorldError
from headrace.storage import StoreOptions, open_store
from headrace.storage.store.lease import Grant, Lease
from support.recording_store import RecordingStore, recording_store

_LIFE_S = 60.0
_SECRET = "thorns-of-the-vendor"  # noqa: S105 - of no store


@dataclass
class _Vendor:
    """Gives a new key at each call, or fails as it is told."""

    life_s: float | None = _LIFE_S
    now_s: float = 0.0
    calls: int = 0
    failure: WorldError | None = None
    answered: threading.Event = field(default_factory=threading.Event)

    title = "the catalog 'prod'"

    def __call__(self) -> Grant:
        self.calls += 1
        self.answered.wait(0.05)
        if self.failure is not None:
            raise self.failure
        values = {"access_key": f"KEY{self.calls}", "secret_key": _SECRET, "session_token": "t"}
        return Grant(values, None if self.life_s is None else self.now_s + self.life_s)


def _lease(vendor: _Vendor) -> Lease:
    return Lease(vendor, clock=lambda: vendor.now_s, uniform=Random(1).random)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RecordingStore]:
    """A store that refuses the keys it is told to."""
    with recording_store(monkeypatch, tmp_path) as running:
        yield running


def test_a_day_of_lives_of_a_minute() -> None:
    """Nobody ever holds what has expired, and the vendor is asked 1.2 times a life at most."""
    vendor = _Vendor()
    vendor.answered.set()
    lease, steps = _lease(vendor), 24 * 3600 * 4
    for step in range(steps):
        vendor.now_s = step / 4
        assert (lease.get().expires_at_s or 0.0) > vendor.now_s

    assert 1.0 <= vendor.calls / (24 * 3600 / _LIFE_S) <= 1.2


def test_what_there_is_serves_while_the_vendor_is_away() -> None:
    """Until it expires; then uses fail in a way that is retried, and end when it is back."""
    vendor = _Vendor()
    lease = _lease(vendor)
    first = lease.get()
    vendor.failure = StoreUnavailableError("the catalog 'prod' is away")

    vendor.now_s = 59.9
    assert first is lease.get()
    vendor.now_s = 60.1
    with pytest.raises(StoreUnavailableError, match="away"):
        lease.get()
    calls = vendor.calls
    with pytest.raises(StoreUnavailableError, match="away"):
        lease.get()
    assert calls == vendor.calls  # it was asked a moment ago

    vendor.failure, vendor.now_s = None, 180.0
    assert 240.0 == lease.get().expires_at_s


def test_a_vendor_that_refuses_ends_no_read_that_still_works() -> None:
    """Its refusal counts once the credentials are needed, and it is final."""
    vendor = _Vendor()
    lease = _lease(vendor)
    first = lease.get()
    vendor.failure = StoreRefusedError("the catalog 'prod' vends no credentials")

    vendor.now_s = 58.0
    assert first is lease.get()
    vendor.now_s = 61.0
    with pytest.raises(StoreRefusedError, match="vends no credentials"):
        lease.get()


@pytest.mark.parametrize("now_s", [0.0, 58.0, 61.0])
def test_sixteen_threads_ask_once(now_s: float) -> None:
    """At the beginning, ahead of the end, and after it."""
    vendor = _Vendor()
    lease = _lease(vendor)
    if now_s:
        lease.get()
    vendor.now_s, vendor.calls = now_s, 0

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: lease.get(), range(64)))
    assert 1 == vendor.calls


def test_what_had_expired_when_it_came_is_refused() -> None:
    """A wrong clock is named, and the vendor is not asked in a loop."""
    vendor = _Vendor(life_s=-1.0)
    lease = _lease(vendor)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="already expired; set the clock"):
            lease.get()

    assert 1 == vendor.calls


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "AccessDenied"])
def test_a_refused_key_is_renewed_and_the_read_repeated(server: RecordingStore, code: str) -> None:
    """The store refuses before the stated end; sixteen reads share one renewal."""
    vendor = _Vendor(life_s=None)
    lease = Lease(vendor, clock=lambda: vendor.now_s)
    store = server.store(lease=lease)
    assert b"hello" == store.read("y")
    vendor.now_s = 10.0
    server.refusals["KEY1"] = (403, code)

    with ThreadPoolExecutor(16) as pool:
        assert [b"hello"] * 64 == list(pool.map(lambda _: store.read("y"), range(64)))
    assert 2 == vendor.calls
    store.close()


def test_new_keys_that_are_refused_are_not_asked_for_again(server: RecordingStore) -> None:
    """A missing right is no reason to ask the vendor once a read."""
    server.refusals |= {f"KEY{number}": (403, "AccessDenied") for number in range(9)}
    vendor = _Vendor()
    store = server.store(lease=_lease(vendor))

    for _ in range(5):
        with pytest.raises(StoreRefusedError, match="KEY1 \\(from the catalog 'prod'"):
            store.read("y")
    assert 1 == vendor.calls
    store.close()


def test_secrets_are_in_no_text(server: RecordingStore, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in messages and logs nor in representations; a copy asks for its own."""
    caplog.set_level(logging.DEBUG, "headrace")
    server.refusals["KEY1"] = (403, "AccessDenied")
    lease = _lease(_Vendor())
    store = server.store(lease=lease)
    with pytest.raises(StoreRefusedError) as error:
        store.read("y")

    shown = f"{error.value} {error.value.metadata} {lease!r} {lease.held!r} {caplog.text}"
    assert _SECRET not in shown
    copied = Lease(_Away())
    assert _SECRET.encode() not in pickle.dumps(copied)
    assert pickle.loads(pickle.dumps(copied)).held is None
    store.close()


class _Fenced(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """Files that the newest key alone may read, as of Google or Azure."""

    protocol = "fenced"
    newest = "KEY1"

    def cat_file(self, path: str, **how: object) -> bytes:
        if self.storage_options["access_key"] != self.newest:
            raise PermissionError("403")
        return bytes(super().cat_file(path, **how))


def test_other_stores_are_opened_again_with_new_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ahead of the end, and when the store refuses what it was opened with."""
    register_implementation("fenced", _Fenced, clobber=True)
    vendor = _Vendor()
    options = StoreOptions(lease=_lease(vendor))
    store = open_store(f"fenced://{uuid.uuid4().hex}", options=options)
    store.write("y", b"hello")
    assert b"hello" == store.read("y")

    vendor.now_s = 10.0
    monkeypatch.setattr(_Fenced, "newest", "KEY2")
    assert b"hello" == store.read("y")
    vendor.now_s = 69.0
    monkeypatch.setattr(_Fenced, "newest", "KEY3")
    assert b"hello" == store.read("y")
    assert 3 == vendor.calls


class _Away:
    """A vendor that can be pickled."""

    title = "a vendor"

    def __call__(self) -> Grant:
        raise StoreUnavailableError("it is away")
