"""Servers that speak something else: the first contact says so, and what to type."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from headrace.client import Access, Deadlines, RemoteDataset, TlsConfig, Transport
from headrace.errors import ServerUnreachableError
from support.command import Serving, run, serving
from support.datasets import small_table, write_dataset

# A first contact that is taken for a server that is away would last this long.
_AWAY_S = 120.0
_DEADLINES = Deadlines(connect_s=_AWAY_S, give_up_s=_AWAY_S)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset."""
    found = str(tmp_path_factory.mktemp("dataset"))
    write_dataset(found, small_table(10), shard_samples=[10])
    return found


@pytest.fixture(scope="module")
def plain(url: str) -> Iterator[Serving]:
    """A server without TLS."""
    with serving({"small": url}) as running:
        yield running


@pytest.fixture
def web_page() -> Iterator[str]:
    """The address of a server of HTTP/1."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Who signs the certificates of this module."""
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(
    url: str, authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    """A server with TLS, of which the certificate names another host."""
    tls = _issued(authority, "feeder", tmp_path_factory.mktemp("tls"))
    with serving({"small": url}, f"--tls-cert={tls.cert}", f"--tls-key={tls.key}") as running:
        yield running


@pytest.fixture(scope="module")
def mutual(
    url: str, authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    """A server with TLS that asks for a certificate of the same authority."""
    folder = tmp_path_factory.mktemp("mutual")
    tls = _issued(authority, "localhost", folder)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    options = (
        f"--tls-cert={tls.cert}",
        f"--tls-key={tls.key}",
        f"--tls-client-ca={folder}/ca.pem",
    )
    with serving({"small": url}, *options, listen="localhost:0") as running:
        yield running


def _issued(
    authority: trustme.CA, name: str, folder: Path, not_after: datetime | None = None
) -> TlsConfig:
    """Return the files of a certificate; what it trusts is no part of it."""
    issued = authority.issue_cert(name, not_after=not_after)
    issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    return TlsConfig(cert=folder / f"{name}.pem", key=folder / f"{name}.key")


def _refusal(address: str, access: Access | None = None) -> str:
    began = time.monotonic()
    dataset = RemoteDataset(
        address, "small", batch_size=2, access=access, transport=Transport(deadlines=_DEADLINES)
    )
    try:
        with pytest.raises(ServerUnreachableError) as caught:
            list(dataset)
    finally:
        dataset.close()
    assert time.monotonic() - began < _AWAY_S / 2
    return caught.value.message


def _trusting(authority: trustme.CA, folder: Path) -> Access:
    path = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return Access(tls=TlsConfig(ca=path))


def test_a_web_page_is_no_server(web_page: str) -> None:
    """Nor is the port of metrics."""
    assert "speaks HTTP/1, not gRPC" in _refusal(web_page)


class _RefusingProxy(http.server.BaseHTTPRequestHandler):
    def do_CONNECT(self) -> None:
        self.send_error(403)


def test_a_proxy_of_the_environment_may_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """GRPC takes it for any address; the client is told which variables to look at."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _RefusingProxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        refusal = _refusal("feeder.example:50051")
        proxy.shutdown()

    assert "add the host to no_proxy" in refusal


def test_tls_to_a_server_without(plain: Serving, authority: trustme.CA, tmp_path: Path) -> None:
    """The client is told to leave it out."""
    assert "does not speak TLS" in _refusal(plain.address, _trusting(authority, tmp_path))


def test_no_tls_to_a_server_with(encrypted: Serving) -> None:
    """GRPC says that the socket was closed; that the server speaks TLS is found out."""
    assert "speaks TLS; pass access=Access(tls=" in _refusal(encrypted.address)
    assert "speaks TLS; pass" in run("list", encrypted.address).stderr


def test_a_stranger_is_not_trusted(encrypted: Serving, tmp_path: Path) -> None:
    """The client is told how to name the authority."""
    access = _trusting(trustme.CA(), tmp_path)

    assert "that this client does not trust" in _refusal(encrypted.address, access)


def test_a_certificate_may_have_expired(url: str, authority: trustme.CA, tmp_path: Path) -> None:
    """The client is not told to name an authority, which it has done."""
    expired = _issued(authority, "localhost", tmp_path, datetime(2026, 1, 2, tzinfo=UTC))
    options = (f"--tls-cert={expired.cert}", f"--tls-key={expired.key}")

    with serving({"small": url}, *options, listen="localhost:0") as running:
        refusal = _refusal(running.address, _trusting(authority, tmp_path))

    assert "has a certificate that is not valid now" in refusal


def test_a_certificate_is_for_a_name(
    encrypted: Serving, authority: trustme.CA, tmp_path: Path
) -> None:
    """The client is told that the server has another one."""
    access = _trusting(authority, tmp_path)

    assert "has a certificate for another name" in _refusal(encrypted.address, access)


def test_no_certificate_for_a_server_that_asks_for_one(
    mutual: Serving, authority: trustme.CA, tmp_path: Path
) -> None:
    """GRPC says that the socket was closed; that a certificate is missing is found out."""
    access = _trusting(authority, tmp_path)
    assert access.tls is not None

    wanted = "asks for a client certificate, and this client has none; pass one"
    assert wanted in _refusal(mutual.address, access)
    for command in ("list", "health"):
        assert wanted in run(command, mutual.address, "--tls-ca", str(access.tls.ca)).stderr


def test_a_certificate_of_a_stranger(
    mutual: Serving, authority: trustme.CA, tmp_path: Path
) -> None:
    """The client is told which file the server does not take; with another it is let in."""
    access = _trusting(authority, tmp_path)
    assert access.tls is not None
    for signer, is_let_in in ((trustme.CA(), False), (authority, True)):
        tls = replace(_issued(signer, "trainer", tmp_path), ca=access.tls.ca)
        shown = Access(tls=tls)
        if is_let_in:
            dataset = RemoteDataset(mutual.address, "small", batch_size=2, epochs=1, access=shown)
            with dataset:
                assert 5 == sum(1 for _ in dataset)
        else:
            wanted = f"does not take the client certificate in {tls.cert}; pass one"
            assert wanted in _refusal(mutual.address, shown)


def test_one_mistaken_address_of_two_ends_nothing(plain: Serving, web_page: str) -> None:
    """The other server is asked; its batches come."""
    dataset = RemoteDataset([web_page, plain.address], "small", batch_size=2, epochs=1)
    try:
        assert 5 == sum(1 for _ in dataset)
    finally:
        dataset.close()
