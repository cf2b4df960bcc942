"""The requests that a store sends by itself are those that boto3 would send.

The first read of a store goes through boto3 and shows how; these tests are of the later ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import gmtime, strftime

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.utils import percent_encode
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    HeadraceError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage import StoreOptions, open_store
from headrace.storage.store.s3.sigv4 import SigningKeys, SigningScope, signed_get_headers
from support.recording_store import (
    CUT,
    CUT_ERROR,
    FAST_RETRY,
    TRICKLE,
    RecordingStore,
    recording_store,
)
from support.s3 import S3

_KEYS = {"access_key": "AKIAFLOWERS", "secret_key": "thorns"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RecordingStore]:
    """A recording server, and an environment without any AWS settings."""
    with recording_store(monkeypatch, tmp_path) as running:
        yield running


@given(
    key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    token=st.none() | st.text("AZaz09+/=", min_size=1, max_size=40),
    now_s=st.integers(0, 2**32),
    extra=st.sampled_from([{}, {"x-amz-request-payer": "requester"}]),
)
def test_signatures_are_those_of_botocore(
    key: str, secret: str, token: str | None, now_s: int, extra: dict[str, str]
) -> None:
    """For any key, secret, token and time, every header is as botocore's signer makes it."""
    path = "/flowers/" + percent_encode(key, safe="/~")
    headers = {"range": "bytes=3-9", **extra}
    request = AWSRequest("GET", f"http://127.0.0.1:9{path}", headers=dict(headers))
    request.context["timestamp"] = strftime("%Y%m%dT%H%M%SZ", gmtime(now_s))
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    signer = S3SigV4Auth(Credentials("AKIA", secret, token), "s3", "eu-central-9")
    request.headers["X-Amz-Content-SHA256"] = signer.payload(request)
    if token is not None:
        request.headers["X-Amz-Security-Token"] = token
    text = signer.string_to_sign(request, signer.canonical_request(request))
    wanted = signer.signature(text, request)

    found = signed_get_headers(
        "127.0.0.1:9",
        path,
        headers,
        keys=SigningKeys("AKIA", secret, token),
        scope=SigningScope(region="eu-central-9", service="s3"),
        now_s=now_s,
    )

    sent = {name.lower(): value for name, value in request.headers.items()}
    assert sent == {name: value for name, value in found.items() if name != "authorization"}
    assert wanted == found["authorization"].rpartition("Signature=")[2]


@pytest.mark.parametrize("options", [_KEYS, {"anonymous": True}], ids=["signed", "anonymous"])
def test_later_requests_are_like_the_first(
    server: RecordingStore, options: dict[str, object]
) -> None:
    """Path, host, region and who pays are as in boto3's own request, in all reads after it."""
    store = server.store(requester_pays=True, **options)
    for _ in range(3):
        assert store.read("a b/ü~+%.bin", offset=1, length=5) == b"ello"

    first, *later = [_without_the_moment(request) for request in server.requests]
    assert [first, first] == later


def _without_the_moment(request: dict[str, str]) -> dict[str, str]:
    kept = (":path", "host", "range", "x-amz-request-payer")
    signed_as = request.get("authorization", "").partition(", Signature=")[0]
    return {name: request.get(name, "") for name in kept} | {"authorization": signed_as}


@pytest.mark.parametrize("name", ["plain", "a b", "ü~+%2F.bin", "x=1&y?#;,:@$!*'()"])
def test_a_real_store_takes_the_signatures(s3: S3, name: str) -> None:
    """Names with characters that are escaped are read again and again."""
    store = open_store(s3.url("x"))
    store.write(name, b"rose")

    assert [b"os"] * 3 == [store.read(name, offset=1, length=2) for _ in range(3)]
    assert store.read(name, offset=9, length=2) == b""


@pytest.mark.parametrize("earlier", [0, 1])  # the first request of a store goes through boto3
@pytest.mark.parametrize(
    ("status", "wanted", "attempts", "told"),
    [
        (503, StoreUnavailableError, 4, r"throttles .*503.* after 4 attempts"),
        (429, StoreUnavailableError, 4, r"throttles .*429.* after 4 attempts"),
        (500, StoreUnavailableError, 4, "after 4 attempts"),
        (CUT, StoreUnavailableError, 4, "after 4 attempts"),
        (404, ObjectNotFoundError, 1, "y"),
        (403, StoreRefusedError, 1, "y"),
        (401, StoreRefusedError, 1, "y"),
    ],
)
def test_only_what_may_pass_is_tried_again(
    server: RecordingStore,
    *,
    earlier: int,
    status: int,
    wanted: type[HeadraceError],
    attempts: int,
    told: str,
) -> None:
    """Throttling and failures are retried as the policy says; absence and refusal never."""
    store = server.store(**_KEYS)
    for _ in range(earlier):
        store.read("y")
    server.statuses.extend([status] * 10)

    with pytest.raises(wanted, match=told):
        store.read("y")

    assert earlier + attempts == len(server.requests)


@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize("statuses", [[503, 429, 503], [503, 500, CUT]])
def test_trouble_that_passes_is_not_seen(
    server: RecordingStore, earlier: int, statuses: list[int]
) -> None:
    """Busy, broken, cut off, then the bytes."""
    store = server.store(**_KEYS)
    for _ in range(earlier):
        store.read("y")
    server.statuses.extend(statuses)

    assert store.read("y") == b"hello"
    assert earlier + 4 == len(server.requests)


def test_a_bucket_that_is_elsewhere_is_asked_for_through_boto3(server: RecordingStore) -> None:
    """A 400 may say that the region is another; boto3 finds it out, and the read succeeds."""
    store = server.store(**_KEYS)
    store.read("y")
    server.statuses.append(400)

    assert store.read("y") == b"hello"
    assert 3 == len(server.requests)


_BRIEF = """\
import datetime, json, pathlib
runs = pathlib.Path(__file__).with_name("runs")
with runs.open("a") as file:
    file.write("x")
until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=8)
key = f"AKIA{runs.stat().st_size}"
print(json.dumps({"Version": 1, "AccessKeyId": key, "SecretAccessKey": "thorns",
                  "SessionToken": "petal", "Expiration": until.isoformat()}))
"""


def test_renewed_credentials_are_used(server: RecordingStore, tmp_path: Path) -> None:
    """Credentials that are about to expire are asked for again, and sign the next read."""
    (tmp_path / "brief.py").write_text(_BRIEF)
    (tmp_path / "config").write_text(
        f"[profile brief]\ncredential_process = {sys.executable} {tmp_path}/brief.py\n"
    )
    store = server.store(profile="brief")

    for _ in range(3):
        store.read("y")

    used = [re.search(r"Credential=(\w+)/", sent["authorization"]) for sent in server.requests]
    assert 3 == len({found[1] for found in used if found})


_FAILING = """\
import pathlib
down = pathlib.Path(__file__).with_name("down")
if down.exists():
    left = int(down.read_text())
    down.write_text(str(left - 1))
    if left > 0:
        raise SystemExit("the service of credentials is down")
"""


@pytest.mark.parametrize(("failures", "is_read"), [(2, True), (100, False)])
def test_credentials_that_cannot_be_renewed_are_asked_for_again(
    server: RecordingStore, tmp_path: Path, *, failures: int, is_read: bool
) -> None:
    """A service of credentials that is down for a moment is like a store that is."""
    (tmp_path / "brief.py").write_text(_FAILING + _BRIEF)
    (tmp_path / "config").write_text(
        f"[profile brief]\ncredential_process = {sys.executable} {tmp_path}/brief.py\n"
    )
    store = server.store(profile="brief")
    store.read("y")
    (tmp_path / "down").write_text(str(failures))

    if is_read:
        assert store.read("y") == b"hello"
    else:
        with pytest.raises(StoreUnavailableError, match="no credentials for s3://flowers/x/y"):
            store.read("y")


@pytest.mark.parametrize(
    "command",
    ["/no/such/program", "echo none", "echo []", "echo '{}'", "printf '\\377'", "sh -c 'exit 3'"],
)
def test_a_helper_that_gives_no_credentials_is_the_worlds_fault(
    server: RecordingStore, tmp_path: Path, command: str
) -> None:
    """It may be missing, fail, or print what nobody can read."""
    (tmp_path / "config").write_text(f"[profile lost]\ncredential_process = {command}\n")

    with pytest.raises(StoreUnavailableError, match="no credentials for s3://flowers/x/y"):
        server.store(profile="lost").read("y")


@pytest.mark.parametrize("first", ["", "y"], ids=["first", "later"])
def test_an_error_that_breaks_off_is_trouble_that_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str
) -> None:
    """A refusal in chunks that never end is tried again, in the first read and in later ones."""
    with recording_store(monkeypatch, tmp_path) as server:
        store = server.store(**_KEYS)
        if first:
            store.read(first)
        server.statuses.extend([CUT_ERROR, CUT_ERROR])

        assert store.read("y") == b"hello"


def test_many_threads_read_at_once(s3: S3) -> None:
    """Threads that begin together, before anything is known of the store, all get their bytes."""
    store = open_store(s3.url("x"), options=StoreOptions(retry=FAST_RETRY))
    content = bytes(range(256))
    store.write("y", content)

    with ThreadPoolExecutor(16, thread_name_prefix="readers") as pool:
        found = list(pool.map(lambda at: store.read("y", offset=at, length=3), range(250)))

    assert [content[at : at + 3] for at in range(250)] == found


@pytest.fixture
def proxied(server: RecordingStore, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The options of a store that is reached through a proxy, so without our own connections."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    return {**_KEYS, "endpoint": "http://flowers.invalid"}


@pytest.mark.parametrize("way", ["proxied", "direct"])
def test_of_a_whole_object_the_range_is_taken(
    server: RecordingStore, proxied: dict[str, str], way: str
) -> None:
    """A store that ignores ranges: in the first read, and in later ones of either kind."""
    store = server.store(**(proxied if way == "proxied" else _KEYS))
    server.statuses.extend([200] * 12)

    for _ in range(3):
        assert store.read("y", offset=1, length=3) == b"ell"
        assert store.read("y", offset=3) == b"lo"
        assert store.read("y", offset=3, length=9) == b"lo"
        assert store.read("y", offset=7, length=9) == b""
    assert 12 == len(server.requests)


@pytest.mark.parametrize("status", [206, 403])
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_body_that_trickles_is_given_up(
    server: RecordingStore, proxied: dict[str, str], earlier: int, status: int
) -> None:
    """In the first read and in a later one: each byte comes in time, and all would take 8 s."""
    store = server.store(**proxied, read_timeout_s=0.5)
    for _ in range(earlier):
        store.read("y")
    server.statuses.extend([TRICKLE + status] * 4)

    with pytest.raises(StoreUnavailableError, match=r"Read timeout.*gave up after 4 attempts"):
        store.read("y")


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize("asked", ["list", "read_versioned"])
def test_whatever_boto3_reads_itself_and_trickles_is_given_up(
    server: RecordingStore, asked: str, status: int
) -> None:
    """Listings, whole objects and their refusals."""
    store = server.store(**_KEYS, read_timeout_s=0.5, write_timeout_s=0.5)
    server.statuses.extend([TRICKLE + status] * 4)
    ask: dict[str, Callable[[], object]] = {
        "list": lambda: list(store.list()),
        "read_versioned": lambda: store.read_versioned("y"),
    }

    with pytest.raises(StoreUnavailableError, match=r"Read timeout.*gave up after 4 attempts"):
        ask[asked]()
