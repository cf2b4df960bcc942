"""Servers that speak something else: the first contact says so, and what to type."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from headrace.client import Access, Deadlines, RemoteDataset, TlsConfig
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
    folder = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("feeder")
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    options = (f"--tls-cert={folder}/cert.pem", f"--tls-key={folder}/key.pem")
    with serving({"small": url}, *options) as running:
        yield running


def _refusal(address: str, access: Access | None = None) -> str:
    began = time.monotonic()
    dataset = RemoteDataset(address, "small", batch_size=2, access=access, deadlines=_DEADLINES)
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
    assert "speaks HTTP/1 and not gRPC" in _refusal(web_page)


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


def test_a_certificate_is_for_a_name(
    encrypted: Serving, authority: trustme.CA, tmp_path: Path
) -> None:
    """The client is told that the server has another one."""
    access = _trusting(authority, tmp_path)

    assert "has a certificate for another name" in _refusal(encrypted.address, access)


def test_one_mistaken_address_of_two_ends_nothing(plain: Serving, web_page: str) -> None:
    """The other server is asked; its batches come."""
    dataset = RemoteDataset([web_page, plain.address], "small", batch_size=2, epochs=1)
    try:
        assert 5 == sum(1 for _ in dataset)
    finally:
        dataset.close()
