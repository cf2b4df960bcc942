"""Getting in: TLS, client certificates, bearer tokens, unix sockets."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme

from headrace.client import Access, Deadlines, RemoteDataset, TlsConfig, Transport
from headrace.errors import (
    BadArgumentError,
    CallerError,
    ConfigurationError,
    HeadraceError,
    ServerUnreachableError,
)
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc
from support.scripted_server import ScriptedService
from support.wire import epoch_messages, start_message

SECRET = "s3cret-t0ken"  # noqa: S105 - of this test alone
HASTY = Deadlines(connect_s=0.5)


def _tokens_of(context: grpc.ServicerContext) -> list[str | bytes]:
    return [value for key, value in context.invocation_metadata() if key == "authorization"]


def _epoch(
    request: pb.ReadBatchesRequest, context: grpc.ServicerContext
) -> Iterator[pb.ReadBatchesResponse]:
    del request, context
    yield start_message()
    yield from epoch_messages(0)


def _guarded(
    request: pb.ReadBatchesRequest, context: grpc.ServicerContext
) -> Iterator[pb.ReadBatchesResponse]:
    if _tokens_of(context) != [f"Bearer {SECRET}"]:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
    yield from _epoch(request, context)


class _Guarded(ScriptedService):
    """Wants the token for descriptions too."""

    def GetDataset(  # noqa: N802 - the name of the RPC
        self, request: pb.GetDatasetRequest, context: grpc.ServicerContext
    ) -> pb.GetDatasetResponse:
        """Describe the dataset to those who may know."""
        if _tokens_of(context) != [f"Bearer {SECRET}"]:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
        return super().GetDataset(request, context)


@contextmanager
def _serving(
    service: ScriptedService,
    *,
    address: str = "localhost:0",
    credentials: grpc.ServerCredentials | None = None,
) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="scripted"))
    rpc.add_ShardServiceServicer_to_server(service, server)
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield address if address.startswith("unix:") else f"localhost:{port}"
    finally:
        server.stop(grace=None).wait(5)


@dataclass(frozen=True, slots=True)
class Pki:
    """Files of an authority that both sides know, and of one that neither does."""

    ca: Path
    cert: Path
    key: Path
    stranger: Path
    server: tuple[bytes, bytes]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Make authorities and certificates."""
    folder = tmp_path_factory.mktemp("pki")
    authority, stranger = trustme.CA(), trustme.CA()
    server = authority.issue_cert("localhost")
    client = authority.issue_cert("trainer@example.com")
    pki = Pki(
        folder / "ca.pem",
        folder / "cert.pem",
        folder / "key.pem",
        folder / "stranger.pem",
        (server.private_key_pem.bytes(), server.cert_chain_pems[0].bytes()),
    )
    authority.cert_pem.write_to_path(str(pki.ca))
    stranger.cert_pem.write_to_path(str(pki.stranger))
    client.cert_chain_pems[0].write_to_path(str(pki.cert))
    client.private_key_pem.write_to_path(str(pki.key))
    return pki


def _positions(dataset: RemoteDataset) -> list[int]:
    try:
        return [batch.position for batch in dataset]
    finally:
        dataset.close()


def test_a_server_with_tls_is_read_over_tls(pki: Pki) -> None:
    """Batches and descriptions alike."""
    credentials = grpc.ssl_server_credentials([pki.server])
    with _serving(ScriptedService([_epoch]), credentials=credentials) as address:
        dataset = RemoteDataset(address, "d", batch_size=4, access=Access(tls=TlsConfig(ca=pki.ca)))

        assert 3 == len(dataset)
        assert [0, 4, 8] == _positions(dataset)


def test_a_server_of_an_unknown_authority_is_not_trusted(pki: Pki) -> None:
    """Nor is one with TLS read in plain text."""
    credentials = grpc.ssl_server_credentials([pki.server])
    service = ScriptedService([_epoch])
    with _serving(service, credentials=credentials) as address:
        for tls in (TlsConfig(ca=pki.stranger), None):
            dataset = RemoteDataset(
                address,
                "d",
                batch_size=4,
                access=Access(tls=tls),
                transport=Transport(deadlines=HASTY),
            )
            with pytest.raises(ServerUnreachableError):
                _positions(dataset)

    assert [] == service.requests


def test_a_client_certificate_is_shown_where_one_is_asked_for(pki: Pki) -> None:
    """And without it nobody gets in."""
    credentials = grpc.ssl_server_credentials(
        [pki.server], root_certificates=pki.ca.read_bytes(), require_client_auth=True
    )
    mutual = TlsConfig(ca=pki.ca, cert=pki.cert, key=pki.key)
    with _serving(ScriptedService([_epoch]), credentials=credentials) as address:
        assert [0, 4, 8] == _positions(
            RemoteDataset(address, "d", batch_size=4, access=Access(tls=mutual))
        )
        alone = RemoteDataset(
            address,
            "d",
            batch_size=4,
            access=Access(tls=TlsConfig(ca=pki.ca)),
            transport=Transport(deadlines=HASTY),
        )
        with pytest.raises(ServerUnreachableError):
            _positions(alone)


def test_a_bearer_token_goes_with_every_call(pki: Pki) -> None:
    """As a string, or fresh from a function for each call."""
    credentials = grpc.ssl_server_credentials([pki.server])
    asked = []

    def fresh() -> str:
        asked.append(1)
        return SECRET

    with _serving(_Guarded([_guarded]), credentials=credentials) as address:
        for auth in (SECRET, fresh):
            dataset = RemoteDataset(
                address, "d", batch_size=4, access=Access(tls=TlsConfig(ca=pki.ca), auth=auth)
            )
            assert 3 == len(dataset)
            assert [0, 4, 8] == _positions(dataset)

    assert 2 == len(asked)


def test_the_environment_is_enough_to_read(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address, token and authorities: a program that names the dataset alone."""
    (tmp_path / "token").write_text(SECRET)
    credentials = grpc.ssl_server_credentials([pki.server])
    with _serving(_Guarded([_guarded]), credentials=credentials) as address:
        monkeypatch.setenv("HEADRACE_TARGET", address)
        monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("HEADRACE_CA_FILE", str(pki.ca))
        dataset = RemoteDataset(None, "d", batch_size=4)

        assert 3 == len(dataset)
        assert [0, 4, 8] == _positions(dataset)


@pytest.mark.parametrize("auth", [None, "another-t0ken"])
def test_a_refused_token_is_an_error_at_once_and_stays_secret(
    auth: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not tried again; neither error nor log nor any repr shows it."""
    caplog.set_level(logging.DEBUG)
    service = _Guarded([_guarded])
    with _serving(service) as address:
        dataset = RemoteDataset(address, "d", batch_size=4, access=Access(auth=auth))
        with pytest.raises(CallerError, match="auth=") as error:
            _positions(dataset)

    shown = "".join(traceback.format_exception(error.value)) + caplog.text + repr(dataset)
    assert 1 == len(service.requests)
    assert "t0ken" not in shown + repr(dataset._endpoints) + repr(error.value.metadata)


@pytest.mark.parametrize("token", ["", "with space", "line\nbreak", "naïve-t0ken"])
def test_what_cannot_stand_in_a_header_is_refused_unseen(token: str) -> None:
    """Before anything travels, also from a function, and the message does not repeat it."""
    with pytest.raises(BadArgumentError, match="auth is a token of") as error:
        Access(auth=token)
    assert not token or token not in str(error.value)

    with pytest.raises(BadArgumentError, match="auth is a token of"):
        Access(auth=lambda: token).metadata()


def test_a_function_that_fails_is_named_and_its_reason_kept() -> None:
    """The loop gets our error; the cause is theirs."""

    def broken() -> str:
        raise OSError("vault is sealed")

    dataset = RemoteDataset("127.0.0.1:1", "d", batch_size=4, access=Access(auth=broken))
    with pytest.raises(ConfigurationError, match="raised OSError") as error:
        _positions(dataset)

    assert isinstance(error.value.__cause__, OSError)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    """At the first connection, since they may be renewed until then."""
    dataset = RemoteDataset(
        "127.0.0.1:1", "d", batch_size=4, access=Access(tls=TlsConfig(ca=tmp_path / "none.pem"))
    )

    with pytest.raises(ConfigurationError, match=r"none\.pem"):
        _positions(dataset)


def test_half_a_client_certificate_is_refused() -> None:
    """A certificate without its key proves nothing."""
    with pytest.raises(BadArgumentError, match=r"tls\.key"):
        TlsConfig(cert="cert.pem")


def test_a_unix_socket_is_an_address_too(tmp_path: Path) -> None:
    """With a token as without; in a pickled dataset as well."""
    address = f"unix:{tmp_path}/s"
    with _serving(_Guarded([_guarded]), address=address) as target:
        dataset = RemoteDataset(target, "d", batch_size=4, access=Access(auth=SECRET))
        copy = pickle.loads(pickle.dumps(dataset))

        assert 3 == len(dataset)
        assert [[0, 4, 8]] * 2 == [_positions(dataset), _positions(copy)]


def test_a_unix_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As any other address."""
    dataset = RemoteDataset(
        f"unix:{tmp_path}/none", "d", batch_size=4, transport=Transport(deadlines=HASTY)
    )

    with pytest.raises(HeadraceError, match="none"):
        _positions(dataset)
