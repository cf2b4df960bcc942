"""Credentials that change while a server lives are read again, whatever their source."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from headrace.errors import StoreRefusedError, StoreUnavailableError
from support.recording_store import RecordingStore, recording_store

_STATUS = {"ExpiredToken": 400, "InvalidAccessKeyId": 403, "AccessDenied": 403}

# The process writes down that it was run, and gives the key that a file names.
_PROCESS = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
with (folder / "runs").open("a") as runs:
    runs.write("x")
given = json.loads((folder / "given.json").read_text())
print(json.dumps({"Version": 1, "SecretAccessKey": "thorns", **given}))
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RecordingStore]:
    """A store that refuses the keys it is told to."""
    with recording_store(monkeypatch, tmp_path) as running:
        yield running


def _give_by_file(folder: Path, key: str) -> None:
    text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = thorns\n"
    _replace(folder / "credentials", text)


def _give_by_process(folder: Path, key: str, **more: str) -> None:
    (folder / "process.py").write_text(_PROCESS)
    _replace(folder / "given.json", json.dumps({"AccessKeyId": key, **more}))
    if not (folder / "config").exists():
        command = f"{sys.executable} {folder}/process.py {folder}"
        (folder / "config").write_text(f"[default]\ncredential_process = {command}\n")


def _replace(path: Path, text: str) -> None:
    # As sidecars do, so that nobody reads half of it.
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize("give", [_give_by_file, _give_by_process])
@pytest.mark.parametrize("code", list(_STATUS))
def test_a_refused_key_is_looked_for_again(
    server: RecordingStore, tmp_path: Path, give: Callable[[Path, str], None], code: str
) -> None:
    """After the old key is refused, the source has a new one: the loop goes on."""
    give(tmp_path, "OLD")
    store = server.store()
    for _ in range(3):
        store.read("y")
    give(tmp_path, "NEW")
    server.refusals["OLD"] = (_STATUS[code], code)
    server.requests.clear()

    for _ in range(3):
        assert b"hello" == store.read("y")
    assert ["NEW"] * 3 == server.used_keys()[-3:]
    assert len(server.requests) <= 4


def test_many_readers_ask_the_source_once(server: RecordingStore, tmp_path: Path) -> None:
    """Threads that are refused at the same moment share one new key."""
    _give_by_process(tmp_path, "OLD")
    store = server.store()
    store.read("y")
    _give_by_process(tmp_path, "NEW")
    server.refusals["OLD"] = (400, "ExpiredToken")

    with ThreadPoolExecutor(16, thread_name_prefix="read") as pool:
        assert [b"hello"] * 64 == list(pool.map(lambda _: store.read("y"), range(64)))
    assert "xx" == (tmp_path / "runs").read_text()


def test_a_changed_file_is_read_before_the_old_key_expires(
    server: RecordingStore, tmp_path: Path
) -> None:
    """Nobody has to be refused first: a file is looked at every second."""
    _give_by_file(tmp_path, "OLD")
    store = server.store()
    store.read("y")
    _give_by_file(tmp_path, "NEW")

    for _ in range(600):
        store.read("y")
        if server.used_keys()[-1] == "NEW":
            break
        threading.Event().wait(0.05)
    assert "NEW" == server.used_keys()[-1]


def test_keys_of_ten_minutes_are_not_asked_for_with_each_read(
    server: RecordingStore, tmp_path: Path
) -> None:
    """Botocore would run the process for every request in their last quarter of an hour."""
    soon = datetime.now(UTC) + timedelta(minutes=9)
    _give_by_process(tmp_path, "BRIEF", SessionToken="petal", Expiration=soon.isoformat())
    store = server.store()

    for _ in range(100):
        store.read("y")
    assert len((tmp_path / "runs").read_text()) <= 20


def test_a_sidecar_may_be_late(server: RecordingStore, tmp_path: Path) -> None:
    """A key has expired before there is a new one: that is told, and passes."""
    _give_by_file(tmp_path, "OLD")
    store = server.store()
    store.read("y")
    server.refusals["OLD"] = (400, "ExpiredToken")

    with pytest.raises(StoreUnavailableError, match=r"ExpiredToken.*OLD.*no newer ones yet"):
        store.read("y")
    _give_by_file(tmp_path, "NEW")
    threading.Event().wait(1)
    assert b"hello" == store.read("y")


def test_a_file_that_is_half_written_is_read_again(server: RecordingStore, tmp_path: Path) -> None:
    """A sidecar that does not rename is met in the middle of its writing."""
    _give_by_file(tmp_path, "OLD")
    store = server.store()
    store.read("y")
    server.refusals["OLD"] = (400, "ExpiredToken")
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = NEW\n")

    with pytest.raises(StoreUnavailableError, match=r"OLD.* newer"):
        store.read("y")
    _give_by_file(tmp_path, "NEW")
    threading.Event().wait(1)
    assert b"hello" == store.read("y")


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "ExpiredToken"])
def test_fixed_keys_are_refused_once(server: RecordingStore, code: str) -> None:
    """Keys of the options or the environment cannot change, so their refusal is final."""
    server.refusals["FIXED"] = (_STATUS[code], code)
    store = server.store(access_key="FIXED", secret_key="thorns")  # noqa: S106 - of no store

    with pytest.raises(StoreRefusedError, match=f"{code}.*FIXED"):
        store.read("y")
    assert 1 == len(server.requests)


def test_keys_that_come_after_the_server_are_found(server: RecordingStore, tmp_path: Path) -> None:
    """A store that was opened before its sidecar had written anything."""
    store = server.store()
    with pytest.raises(StoreRefusedError, match="no credentials found"):
        store.read("y")

    _give_by_file(tmp_path, "FIRST")
    assert b"hello" == store.read("y")


class _Services(BaseHTTPRequestHandler):
    """STS, and the service of a container's credentials."""

    server: _Server

    def do_GET(self) -> None:
        """Give the keys of a container for its token."""
        self.server.tokens.append(self.headers["Authorization"])
        self._answer(json.dumps(self.server.keys()))

    def do_POST(self) -> None:
        """Exchange a web identity for keys."""
        sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.tokens.append(parse_qs(sent)["WebIdentityToken"][0])
        keys = self.server.keys()
        self._answer(
            "<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>"
            "<AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{keys['AccessKeyId']}</AccessKeyId>"
            f"<SecretAccessKey>thorns</SecretAccessKey><SessionToken>petal</SessionToken>"
            f"<Expiration>{keys['Expiration']}</Expiration></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    tokens: list[str]

    def keys(self) -> dict[str, str]:
        """Return a new key for each token."""
        until = datetime.now(UTC) + timedelta(hours=1)
        return {
            "AccessKeyId": f"KEY{len(self.tokens)}",
            "SecretAccessKey": "thorns",
            "Token": "petal",
            "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


@contextmanager
def _services() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Services) as running:
        running.tokens = []
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), name="sts")
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join(60)


@pytest.mark.parametrize("source", ["web identity", "container"])
def test_a_token_file_is_read_again(
    server: RecordingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A key that is refused an hour before it expires is exchanged, with the token of the day."""
    token = tmp_path / "token"
    token.write_text("first")
    with _services() as services:
        url = f"http://127.0.0.1:{services.server_address[1]}"
        if source == "container":
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/keys")
            monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        else:
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
            monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
            monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/trainer")
        store = server.store()
        store.read("y")
        token.write_text("second")
        server.refusals["KEY1"] = (400, "ExpiredToken")

        assert b"hello" == store.read("y")
    assert ["first", "second"] == services.tokens
    assert "KEY2" == server.used_keys()[-1]
