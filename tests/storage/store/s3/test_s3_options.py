"""What `StoreOptions` says is what goes over the wire, and only for the store it was given to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from botocore.exceptions import ClientError

from demo.object_store import Weed, start_weed
from headrace.errors import (
    ConfigurationError,
    StoreRefusedError,
)
from headrace.storage import StoreOptions, open_dataset, open_store
from headrace.storage.store.s3.errors import translate
from support.recording_store import FAST_RETRY, RecordingStore, recording_store
from support.s3 import S3
from support.shards import numbered_batch, write_shards_of


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RecordingStore]:
    """A recording server, and an environment without any AWS settings."""
    with recording_store(monkeypatch, tmp_path) as running:
        yield running


_KEYS = {"access_key": "AKIAFLOWERS", "secret_key": "thorns"}


def test_anonymous_requests_are_not_signed(
    server: RecordingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the credentials that the environment has is sent."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thorns")

    store = server.store(anonymous=True)
    store.read("y")
    store.read("y")

    sent = set(server.requests[0]) | set(server.requests[1])
    assert not {"authorization", "x-amz-security-token"} & sent


def test_requester_pays_is_sent_and_signed(server: RecordingStore) -> None:
    """Every request says who pays, under the signature; without the option none does."""
    paying = server.store(requester_pays=True, **_KEYS)
    paying.read("y")
    paying.read("y", offset=3, length=5)
    server.store(**_KEYS).read("y")

    told = [request.get("x-amz-request-payer") for request in server.requests]
    assert ["requester", "requester", None] == told
    assert "x-amz-request-payer" in server.requests[0]["authorization"]


def test_session_tokens_are_sent(server: RecordingStore) -> None:
    """Temporary credentials have a third part."""
    server.store(session_token="petal", **_KEYS).read("y")  # noqa: S106 - of a store of ours

    assert "petal" == server.requests[0]["x-amz-security-token"]


def test_a_profile_gives_the_credentials(server: RecordingStore, tmp_path: Path) -> None:
    """The key of the profile that is named signs, not that of the default one."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = a\n"
        "[garden]\naws_access_key_id = AKIAGARDEN\naws_secret_access_key = b\n"
    )

    server.store(profile="garden").read("y")

    assert "Credential=AKIAGARDEN/" in server.requests[0]["authorization"]


def test_an_unknown_profile_is_told_by_name(server: RecordingStore) -> None:
    """It is the caller's configuration that is wrong."""
    with pytest.raises(ConfigurationError, match="weeds"):
        server.store(profile="weeds").read("y")


def test_the_region_is_what_is_signed_for(server: RecordingStore) -> None:
    """Services refuse signatures for other regions."""
    server.store(region="eu-central-9", **_KEYS).read("y")

    assert "/eu-central-9/s3/aws4_request" in server.requests[0]["authorization"]


def _resolve_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve ``*.localhost``, which not all systems do by themselves."""
    whole = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **options: Any) -> Any:
        is_local = isinstance(host, str) and host.endswith(".localhost")
        return whole("127.0.0.1" if is_local else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_virtual_style_puts_the_bucket_into_the_host(
    server: RecordingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And path style, the default for endpoints of one's own, does not."""
    _resolve_localhost(monkeypatch)
    endpoint = f"http://s3.localhost:{server.port}"

    server.store(endpoint=endpoint, addressing="virtual", **_KEYS).read("y")
    server.store(endpoint=endpoint, **_KEYS).read("y")

    hosts = [request["host"] for request in server.requests]
    assert [f"flowers.s3.localhost:{server.port}", f"s3.localhost:{server.port}"] == hosts


def test_a_clock_that_differs_is_said() -> None:
    """Other credentials would not help."""
    answer: Any = {
        "Error": {"Code": "RequestTimeTooSkewed"},
        "ResponseMetadata": {"HTTPStatusCode": 403},
    }
    error = translate(ClientError(answer, "GetObject"), place="s3://b/x", credential="key AKIA")

    assert isinstance(error, StoreRefusedError)
    assert "set this machine's clock" in error.message


def test_a_read_only_identity_is_refused_by_name(s3: S3) -> None:
    """It reads; a write names its access key and where that came from, never the secret."""
    s3.weed.client().put_object(Bucket=s3.weed.bucket, Key=s3.key("x/y"), Body=b"rose")
    options = StoreOptions(
        access_key=s3.weed.reader_access_key, secret_key=s3.weed.reader_secret_key
    )
    store = open_store(s3.url("x"), options=options)

    assert store.read("y") == b"rose"
    with pytest.raises(StoreRefusedError, match=s3.weed.reader_access_key) as caught:
        store.write("z", b"thistle")
    assert s3.weed.reader_secret_key not in str(caught.value) + repr(caught.value.metadata)


def test_datasets_have_credentials_of_their_own(s3: S3) -> None:
    """In one process, each dataset is read as who it was opened for, whatever the environment."""
    write_shards_of(s3.url("d"), [numbered_batch(0, 50)])
    reader = StoreOptions(
        access_key=s3.weed.reader_access_key, secret_key=s3.weed.reader_secret_key
    )
    stranger = StoreOptions(access_key="stranger", secret_key="thorns", retry=FAST_RETRY)  # noqa: S106 - and wrong

    with open_dataset(s3.url("d")) as ours, open_dataset(s3.url("d"), options=reader) as theirs:
        with pytest.raises(StoreRefusedError, match="stranger"):
            open_dataset(s3.url("d"), options=stranger)

        assert ours.read_block(0).equals(theirs.read_block(0))


@pytest.fixture(scope="module")
def tls_weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Weed, int, Path]]:
    """A real store over HTTPS: the server, its port, and the certificate of its authority."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "s3.localhost", "shards.s3.localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(folder / "cert.pem"), append=True)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = int(bound.getsockname()[1])
    flags = [
        f"-s3.port.https={port}",
        f"-s3.cert.file={folder}/cert.pem",
        f"-s3.key.file={folder}/key.pem",
        "-s3.domainName=s3.localhost",
    ]
    with start_weed(folder / "weed", flags=flags) as running:
        yield running, port, folder / "ca.pem"


def _tls_options(weed: Weed, **options: Any) -> StoreOptions:
    return StoreOptions(
        access_key=weed.access_key,
        secret_key=weed.secret_key,
        region=weed.region,
        retry=FAST_RETRY,
        **options,
    )


def test_a_ca_of_ones_own_is_trusted(tls_weed: tuple[Weed, int, Path]) -> None:
    """A dataset is written and read over HTTPS with the bundle that is named."""
    weed, port, bundle = tls_weed
    options = _tls_options(weed, endpoint=f"https://127.0.0.1:{port}", ca_bundle=str(bundle))

    write_shards_of("s3://shards/tls", [numbered_batch(0, 50)], options=options)

    with open_dataset("s3://shards/tls", options=options) as dataset:
        assert 50 == dataset.sample_count


def test_a_certificate_that_is_not_trusted_is_told_at_once(
    tls_weed: tuple[Weed, int, Path],
) -> None:
    """Without the bundle there is no connection, no retry, and a hint at the option."""
    weed, port, _ = tls_weed
    store = open_store(
        "s3://shards/tls", options=_tls_options(weed, endpoint=f"https://127.0.0.1:{port}")
    )

    with pytest.raises(ConfigurationError, match="ca_bundle"):
        store.read("y")


def test_virtual_style_over_tls_with_a_real_store(
    tls_weed: tuple[Weed, int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store finds the bucket in the host, and signatures hold."""
    weed, port, bundle = tls_weed
    _resolve_localhost(monkeypatch)
    options = _tls_options(
        weed,
        endpoint=f"https://s3.localhost:{port}",
        ca_bundle=str(bundle),
        addressing="virtual",
    )
    store = open_store("s3://shards/virtual", options=options)

    store.write("y", b"rose")

    assert store.read("y", offset=1, length=2) == b"os"
