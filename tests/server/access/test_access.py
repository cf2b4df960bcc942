"""Tests of TLS, bearer tokens and permissions of sockets, over real connections."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from headrace.errors import ConfigurationError, UnauthenticatedError
from headrace.server import Server
from headrace.server.access.callers import LOOK_S, Access
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.no_descriptors import no_descriptors
from support.running import server_of
from support.served import TIMEOUT_S, failure_of, messages_of, stub_of

_ENDLESS = pb.ReadBatchesRequest(
    dataset="rich", global_batch_size=2, world_size=1, epoch_start=pb.EpochStart()
)
_RED, _BLUE, _IDLE = "red-secret-0123456789", "blue-secret-0123456789", "idle-secret-0123456789"


def _tokens(path: Path) -> str:
    digest = hashlib.sha256(_BLUE.encode()).hexdigest()
    entries = [
        {"name": "red", "token": _RED, "datasets": ["rich"], "max_streams": 1},
        {"name": "blue", "sha256": digest, "datasets": ["other"]},
        {"name": "idle", "token": _IDLE, "datasets": []},
    ]
    path.write_text(json.dumps({"tokens": entries}))
    return str(path)


def _as(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def _names(channel: grpc.Channel, token: str | None = None) -> list[str]:
    found = stub_of(channel).ListDatasets(
        pb.ListDatasetsRequest(), timeout=TIMEOUT_S, metadata=_as(token) if token else ()
    )
    return [dataset.name for dataset in found.datasets]


def _refusal(channel: grpc.Channel, token: str | None, name: str) -> tuple[str, str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        list(
            stub_of(channel).GetSamples(
                pb.GetSamplesRequest(dataset=name, sample_ids=[1]),
                timeout=TIMEOUT_S,
                metadata=_as(token) if token else (),
            )
        )
    code, info = failure_of(caught.value)
    return code.name, info.reason, str(caught.value.details())


def test_a_token_sees_its_datasets_and_nothing_else(start: StartServer, tmp_path: Path) -> None:
    """What a token may not read is not listed, and refused in the words for what is not there."""
    running = start(tokens=_tokens(tmp_path / "tokens"))

    assert ["rich"] == _names(running.channel, _RED)
    assert [] == _names(running.channel, _BLUE)
    denied = _refusal(running.channel, _BLUE, "rich")
    unknown = _refusal(running.channel, _BLUE, "poor")
    assert ("NOT_FOUND", "DATASET_NOT_FOUND") == denied[:2]
    assert denied == (*unknown[:2], unknown[2].replace("poor", "rich"))


@pytest.mark.parametrize("token", [None, "", "nothing", _RED + "x", _RED[:-1]])
def test_without_a_known_token_nothing_is_said(
    start: StartServer, tmp_path: Path, token: str | None
) -> None:
    """No token and a wrong one are UNAUTHENTICATED for every name."""
    running = start(tokens=_tokens(tmp_path / "tokens"))

    seen = {_refusal(running.channel, token, name) for name in ("rich", "poor")}

    assert {("UNAUTHENTICATED", "UNAUTHENTICATED")} == {one[:2] for one in seen}
    assert 1 == len(seen)


def test_a_token_that_may_read_nothing_is_denied(start: StartServer, tmp_path: Path) -> None:
    """An entry without datasets is known, and PERMISSION_DENIED."""
    running = start(tokens=_tokens(tmp_path / "tokens"))

    seen = _refusal(running.channel, _IDLE, "rich")

    assert ("PERMISSION_DENIED", "ACCESS_DENIED") == seen[:2]


def test_a_token_has_its_own_limit_of_streams(start: StartServer, tmp_path: Path) -> None:
    """A second stream of a token that may have one is refused; the first goes on."""
    running = start(tokens=_tokens(tmp_path / "tokens"))
    stream = stub_of(running.channel).ReadBatches(_ENDLESS, timeout=TIMEOUT_S, metadata=_as(_RED))
    next(iter(stream))

    seen = _refusal(running.channel, _RED, "rich")
    next(iter(stream))

    stream.cancel()  # type: ignore[no-untyped-call]  # of grpc-stubs
    assert ("RESOURCE_EXHAUSTED", "STREAM_LIMIT") == seen[:2]


def test_a_large_answer_waits_for_another_of_its_caller_while_others_stream(
    start: StartServer, tmp_path: Path
) -> None:
    """Single batches of a caller take turns then; one that nobody reads costs a moment."""
    tokens = tmp_path / "tokens.json"
    entries = [{"name": name, "token": name * 8, "datasets": ["*"]} for name in ("red", "blue")]
    tokens.write_text(json.dumps({"tokens": entries}))
    stub = stub_of(start(tokens=str(tokens)).channel)
    large = pb.GetSamplesRequest(dataset="rich", sample_ids=[1] * 65_536)
    calls: list[Any] = [stub.ReadBatches(_ENDLESS, timeout=TIMEOUT_S, metadata=_as("blue" * 8))]
    next(calls[0])
    # As many as there may be turns, and one more.
    for _ in range(5):
        began = time.monotonic()
        calls.append(stub.GetSamples(large, timeout=TIMEOUT_S, metadata=_as("red" * 8)))
        next(calls[-1])
    waited_s = time.monotonic() - began

    for call in calls:
        call.cancel()
    # An extra turn is taken after a tenth of a second.
    assert 0.09 <= waited_s < TIMEOUT_S


def test_tokens_are_read_again_when_they_change(
    start: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new file counts at once, a damaged one changes nothing; no log holds a secret."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "tokens"
    running = start(tokens=_tokens(path))
    path.write_text(f'{{"tokens": ["{_RED}" damaged')

    assert ["rich"] == _names(running.channel, _RED)
    entry = {"name": "new", "token": "another-secret-012345", "datasets": ["*"]}
    path.write_text(json.dumps({"tokens": [entry]}))
    assert ["rich"] == _names(running.channel, "another-secret-012345")
    assert "UNAUTHENTICATED" == _refusal(running.channel, _RED, "rich")[0]
    assert not any(secret in caplog.text for secret in (_RED, _BLUE, "another-secret"))


def test_a_file_of_tokens_is_looked_at_now_and_then(tmp_path: Path) -> None:
    """A token that was taken out ends within `LOOK_S`; one that is new is known at once."""
    now = [0.0]
    path = tmp_path / "tokens"
    first, second = "first-secret-0123456", "second-secret-0123456"
    _write_one(path, first)
    access = Access(path, now=lambda: now[0])
    _write_one(path, second)

    assert "first" == access.caller(_bearer(first)).name
    assert 0 == access.changes()
    now[0] = LOOK_S
    assert 1 == access.changes()
    with pytest.raises(UnauthenticatedError):
        access.caller(_bearer(first))

    _write_one(path, first)
    assert "first" == access.caller(_bearer(first)).name


def test_a_file_that_cannot_be_read_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unchanged, as after a moment without free descriptors; the log says it once."""
    now = [0.0]
    path = tmp_path / "tokens"
    first, second = "first-secret-0123456", "second-secret-0123456"
    _write_one(path, first)
    access = Access(path, now=lambda: now[0])
    _write_one(path, second)

    with no_descriptors():
        for looks in (1, 2):
            now[0] = looks * LOOK_S
            assert 0 == access.changes()
    now[0] = 3 * LOOK_S
    assert 1 == access.changes()
    assert 1 == caplog.text.count("callers were not changed")
    with pytest.raises(UnauthenticatedError):
        access.caller(_bearer(first))


def test_an_unknown_token_costs_little_however_long_the_file_is(tmp_path: Path) -> None:
    """Wrong tokens take no more of a server with 20,000 callers than of one with one."""

    def took_s(count: int) -> float:
        path = tmp_path / str(count)
        entries = [
            {"name": f"{n}", "token": f"secret-{n:016}", "datasets": []} for n in range(count)
        ]
        path.write_text(json.dumps({"tokens": entries}))
        access = Access(path)
        found = []
        for _ in range(20):
            began = time.thread_time()
            with pytest.raises(UnauthenticatedError):
                access.caller(_bearer("another-secret-012345"))
            found.append(time.thread_time() - began)
        return min(found)

    assert took_s(20_000) < 5 * took_s(1)


def _write_one(path: Path, token: str) -> None:
    entry = {"name": token.partition("-")[0], "token": token, "datasets": ["*"]}
    path.write_text(json.dumps({"tokens": [entry]}))


def _bearer(token: str) -> list[tuple[str, str | bytes]]:
    return [("authorization", f"Bearer {token}")]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"tokens": {}}',
        '{"tokens": [1]}',
        '{"tokens": [{"name": "a", "token": "short-secret", "datasets": []}]}',
        '{"tokens": [{"name": "a", "sha256": "AB", "datasets": []}]}',
        '{"tokens": [{"name": "a", "token": "0123456789abcdef"}]}',
        '{"tokens": [{"name": "a", "token": "0123456789abcdef", "datasets": "*"}]}',
        '{"tokens": [{"token": "0123456789abcdef", "datasets": []}]}',
        '{"tokens": [{"name": "a", "subject": "", "datasets": []}]}',
        '{"tokens": [{"name": "a", "subject": "s", "token": "0123456789abcdef", "datasets": []}]}',
        """{"tokens": [{"name": "a", "subject": "s", "datasets": []},
                       {"name": "b", "subject": "s", "datasets": []}]}""",
        '{"tokens": [{"name": "a", "token": "0123456789abcdef", "datasets": [], "x": 1}]}',
        '{"tokens": [{"name":"a","token":"0123456789abcdef","datasets":[],"max_streams":true}]}',
    ],
)
def test_bad_files_of_tokens_are_refused(tmp_path: Path, content: str) -> None:
    """A server does not start on a file that is not as it must be, and quotes no secret of it."""
    path = tmp_path / "tokens"
    path.write_text(content)

    with pytest.raises(ConfigurationError) as caught:
        Access(path)

    assert not any(secret in str(caught.value) for secret in ("short-secret", "0123456789abcdef"))


def _tls_server(
    url: str, path: Path, *, authority: trustme.CA, mutual: bool, tokens: str = ""
) -> Server:
    server = authority.issue_cert("localhost")
    (path / "cert").write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    (path / "key").write_bytes(server.private_key_pem.bytes())
    (path / "ca").write_bytes(authority.cert_pem.bytes())
    return server_of(
        {"rich": url},
        listen="localhost:0",
        tls_cert=str(path / "cert"),
        tls_key=str(path / "key"),
        tls_client_ca=str(path / "ca") if mutual else "",
        tokens=tokens,
    )


def test_tls_and_client_certificates(rich_url: str, tmp_path: Path) -> None:
    """With an authority for clients, only those with its certificate get in."""
    authority = trustme.CA()
    client = authority.issue_cert("trainer")
    root = authority.cert_pem.bytes()
    known = grpc.ssl_channel_credentials(
        root, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
    )
    plain = grpc.ssl_channel_credentials(root)

    for mutual, credentials, expected in (
        (False, plain, grpc.StatusCode.OK),
        (True, known, grpc.StatusCode.OK),
        (True, plain, grpc.StatusCode.UNAVAILABLE),
    ):
        with (
            _tls_server(rich_url, tmp_path, authority=authority, mutual=mutual) as server,
            grpc.secure_channel(server.address, credentials) as channel,
        ):
            if expected is grpc.StatusCode.OK:
                assert ["rich"] == _names(channel)
            else:
                with pytest.raises(grpc.RpcError) as caught:
                    _names(channel)
                assert expected == caught.value.code()


def test_a_renewed_certificate_is_used(
    rich_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections get the new certificate; half of a new pair changes nothing."""
    old, new = trustme.CA(), trustme.CA()

    def names(server: Server, authority: trustme.CA) -> list[str]:
        root = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(server.address, root, options=options) as channel:
            return _names(channel)

    with _tls_server(rich_url, tmp_path, authority=old, mutual=False) as server:
        assert ["rich"] == names(server, old)
        renewed = new.issue_cert("localhost")
        (tmp_path / "cert").write_bytes(renewed.cert_chain_pems[0].bytes())
        assert ["rich"] == names(server, old)
        assert "the certificate was not changed" in caplog.text
        (tmp_path / "key").write_bytes(renewed.private_key_pem.bytes())
        assert ["rich"] == names(server, new)
        with pytest.raises(grpc.RpcError):
            names(server, old)


def test_a_certificate_sees_its_datasets_and_nothing_else(rich_url: str, tmp_path: Path) -> None:
    """Its names are looked up as tokens are; a token that comes beside it counts alone."""
    authority = trustme.CA()
    entries = [
        {"name": "a", "subject": "a.trainers", "datasets": ["rich"], "max_streams": 1},
        {"name": "b", "subject": "b by name", "datasets": ["other"]},
        {"name": "red", "token": _RED, "datasets": ["*"]},
    ]
    (tmp_path / "tokens").write_text(json.dumps({"tokens": entries}))

    def channel(server: Server, certificate: trustme.LeafCert) -> grpc.Channel:
        key, chain = certificate.private_key_pem, certificate.cert_chain_pems[0]
        credentials = grpc.ssl_channel_credentials(
            authority.cert_pem.bytes(), key.bytes(), chain.bytes()
        )
        return grpc.secure_channel(server.address, credentials)

    with (
        _tls_server(
            rich_url, tmp_path, authority=authority, mutual=True, tokens=str(tmp_path / "tokens")
        ) as server,
        channel(server, authority.issue_cert("a.trainers")) as as_a,
        channel(server, authority.issue_cert("x.trainers", common_name="b by name")) as as_b,
        channel(server, authority.issue_cert("nobody")) as as_nobody,
    ):
        assert ["rich"] == _names(as_a)
        assert [] == _names(as_b)
        assert ["rich"] == _names(as_b, _RED)
        assert "UNAUTHENTICATED" == _refusal(as_a, _RED + "x", "rich")[0]
        assert ("UNAUTHENTICATED", "UNAUTHENTICATED") == _refusal(as_nobody, None, "rich")[:2]
        denied, unknown = (_refusal(as_b, None, name) for name in ("rich", "poor"))
        assert denied == (*unknown[:2], unknown[2].replace("poor", "rich"))
        stream = messages_of(as_a, _ENDLESS)
        next(stream)
        assert "RESOURCE_EXHAUSTED" == _refusal(as_a, None, "rich")[0]


def test_an_address_has_its_own_limit_of_streams(start: StartServer, tmp_path: Path) -> None:
    """A second stream from one address is told to wait, whatever its token; a unix peer is not."""
    running = start(
        max_streams_per_peer=1,
        listen=("127.0.0.1:0", f"unix:{tmp_path}/s"),
        tokens=_tokens(tmp_path / "tokens"),
    )
    stream = stub_of(running.channel).ReadBatches(_ENDLESS, timeout=TIMEOUT_S, metadata=_as(_RED))
    next(iter(stream))

    with grpc.insecure_channel(running.server.address) as channel:
        seen = _refusal(channel, _BLUE, "other")
    with grpc.insecure_channel(running.server.addresses[1]) as channel:
        elsewhere = _refusal(channel, _BLUE, "other")

    stream.cancel()  # type: ignore[no-untyped-call]  # of grpc-stubs
    assert ("RESOURCE_EXHAUSTED", "STREAM_LIMIT") == seen[:2]
    assert "this address has 1 streams" in seen[2]
    assert "DATASET_NOT_FOUND" == elsewhere[1]


def test_every_call_hides_what_others_have(start: StartServer, tmp_path: Path) -> None:
    """Each RPC answers for a forbidden dataset, to the byte, what it answers for one not there."""
    running = start(tokens=_tokens(tmp_path / "tokens"))
    stub = stub_of(running.channel)

    def answer(call: Any, request: Any) -> tuple[Any, str, bytes]:
        with pytest.raises(grpc.RpcError) as caught:
            list(call(request, timeout=TIMEOUT_S, metadata=_as(_BLUE)))
        error: Any = caught.value
        packed = [value for key, value in error.trailing_metadata() if key.endswith("-bin")]
        return error.code(), error.details(), b"".join(packed)

    def batch(name: str) -> pb.GetBatchRequest:
        return pb.GetBatchRequest(
            dataset=name, global_batch_size=2, world_size=1, epoch_start=pb.EpochStart()
        )

    def read(name: str) -> pb.ReadBatchesRequest:
        request = pb.ReadBatchesRequest()
        request.CopyFrom(_ENDLESS)
        request.dataset = name
        return request

    calls = (
        (stub.GetDataset, lambda name: pb.GetDatasetRequest(name=name)),
        (stub.ReadBatches, read),
        (stub.GetBatch, batch),
        (stub.GetSamples, lambda name: pb.GetSamplesRequest(dataset=name, sample_ids=[1])),
        (stub.ExplainBatch, lambda name: pb.ExplainBatchRequest(batch=batch(name))),
        (
            stub.FindSamples,
            lambda name: pb.FindSamplesRequest(batch=batch(name), sample_ids=[1]),
        ),
    )
    for call, request in calls:
        forbidden, absent = (answer(call, request(name)) for name in ("rich", "poor"))
        code, text, details = absent
        assert forbidden == (
            code,
            text.replace("poor", "rich"),
            details.replace(b"poor", b"rich"),
        )


def test_what_makes_no_tls_is_refused(rich_url: str, tmp_path: Path) -> None:
    """A missing file, one that is no certificate, and half a pair are refused at the start."""
    (tmp_path / "no").write_text("no certificate")
    good = str(tmp_path / "no")
    cases: tuple[dict[str, Any], ...] = (
        {"tls_cert": good, "tls_key": good},
        {"tls_cert": "/nowhere", "tls_key": good},
        {"tls_cert": good},
        {"tls_client_ca": good},
    )
    for settings in cases:
        with pytest.raises(ConfigurationError):
            server_of({"rich": rich_url}, listen="localhost:0", **settings)


def test_unix_sockets_have_the_permissions_asked_for(
    rich_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A socket is its user's alone, or as asked for, whatever the umask."""
    path = tmp_path_factory.mktemp("s") / "s"
    before = os.umask(0)
    try:
        for unix_mode in (0o600, 0o660):
            with server_of({"rich": rich_url}, listen=f"unix:{path}", unix_mode=unix_mode):
                assert unix_mode == stat.S_IMODE(path.stat().st_mode)
    finally:
        os.umask(before)
