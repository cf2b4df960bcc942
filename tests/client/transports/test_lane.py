"""The lane: the batches of gRPC, whatever happens to its connection, and for nobody else.

How it could give a wrong sample: bytes change, frames are lost or come twice, the connection ends
and the stream seems over, a peer lies about lengths. How it could hang: a port that is filtered, a
peer that says nothing or stops in mid-frame, a client that does not read, ten thousand others at
the door. How it could let somebody in: a ticket that is guessed, used twice or too late, or by
another caller, without TLS, or after its token was taken away.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
import trustme

from headrace.client import Access, Batch, Deadlines, Lane, RemoteDataset, TlsConfig, Transport
from headrace.client.servers.status import error_from_call
from headrace.errors import HeadraceError, NoTransportError, RebalanceError
from headrace.lane import ANSWER_BYTES, HELLO_BYTES, answer, hello
from headrace.server import Server
from headrace.server.transports.lane import LaneSettings
from headrace.v1 import lane_pb2
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc
from support.command import serving
from support.datasets import write_rows
from support.running import server_of
from support.scripted_server import ScriptedService, scripted_server
from support.waiting import until

SAMPLES, WIDTH, BATCH = 2048, 1024, 16
NAME = "d"
QUICK = Deadlines(connect_s=200, silence_s=1.0, give_up_s=200)
PATIENT = Deadlines(connect_s=200, silence_s=200, give_up_s=200)
_IN, _OUT = answer(is_let_in=True), answer(is_let_in=False)
_TOKENS = {"reader": "r" * 20, "other": "o" * 20}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """8 MiB: more than all buffers between a server and a loop hold."""
    url = str(tmp_path_factory.mktemp("lane") / NAME)
    write_rows(url, sample_count=SAMPLES, width=WIDTH)
    return url


@pytest.fixture(scope="module")
def undisturbed(url: str) -> list[str]:
    """The digest of each batch of one epoch, over gRPC."""
    with _server(url) as server, closing(_dataset(server.address, kind="grpc")) as dataset:
        return [_digest(batch) for batch in dataset]


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Server]:
    """A server with a lane."""
    with _server(url) as running:
        yield running


def _server(url: str, *, lane: str = "auto", **settings: object) -> Server:
    plugs = (LaneSettings(lane=lane),)
    return server_of({NAME: url}, plugs=plugs, **settings)


def _dataset(
    target: str, *, kind: str = "lane", deadlines: Deadlines = PATIENT, **options: object
) -> RemoteDataset:
    transport = Transport(kind, prefetch_bytes=0, deadlines=deadlines)
    defaults: dict[str, object] = {"batch_size": BATCH, "epochs": 1, "transport": transport}
    return RemoteDataset(target, NAME, **{**defaults, **options})  # type: ignore[arg-type] # tests name the options they mean


def _digest(batch: Batch) -> str:
    x = batch["x"]
    assert isinstance(x, torch.Tensor)
    return hashlib.sha256(x.numpy().tobytes() + batch.token).hexdigest()


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("batch_size", [1, 16, 2048], ids=["grouped", "some", "parts"])
def test_its_batches_are_those_of_grpc(server: Server, batch_size: int, device: str | None) -> None:
    """Several in a message, one in a message, and one of four messages; also on their way on."""
    found = []
    for kind in ("grpc", "lane"):
        with closing(
            _dataset(server.address, kind=kind, batch_size=batch_size, device=device)
        ) as dataset:
            found.append([_digest(batch) for batch in itertools.islice(dataset, 300)])
            stats = dataset.stats()

    assert found[0] == found[1]
    assert ("lane", "") == (stats.transport, stats.transport_reason)
    assert stats.transport_batch_count >= len(found[1])


def test_a_run_goes_on_over_the_other_way(server: Server, undisturbed: list[str]) -> None:
    """A token of the lane resumes over gRPC, and one of gRPC on the lane."""
    seen: list[str] = []
    token = None
    for kind in ("lane", "grpc", "lane"):
        with closing(_dataset(server.address, kind=kind)) as dataset:
            dataset.load_state_dict(token) if token else None
            seen += [_digest(batch) for batch in itertools.islice(dataset, 40)]
            token = dataset.state_dict()

    assert undisturbed[: len(seen)] == seen


# --- what is between, or at the other end


@contextmanager
def _liar(
    server: Server, play: Callable[[socket.socket, list[bytes]], None]
) -> Iterator[ScriptedService]:
    """A server that offers a lane on which ``play`` sends, and whose gRPC is the real server's.

    ``play`` gets a connection after its handshake, and the stream's messages.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        channel = stack.enter_context(grpc.insecure_channel(server.address))
        stub: Any = rpc.ShardServiceStub(channel)
        service = stack.enter_context(scripted_server(lambda asked, _: stub.ReadBatches(asked)))

        def attach(
            asked: pb.AttachTransportRequest, context: grpc.ServicerContext
        ) -> Iterator[pb.AttachTransportResponse]:
            yield _offer_at(listener.getsockname()[1], service)
            connection, _ = listener.accept()
            messages = [each.SerializeToString() for each in stub.ReadBatches(asked.read)]
            with closing(connection), suppress(OSError):
                assert HELLO_BYTES == len(connection.recv(HELLO_BYTES, socket.MSG_WAITALL))
                connection.sendall(_IN)
                play(connection, messages)
                while context.is_active() and connection.recv(1):
                    pass

        service.attach = attach
        yield service


def _offer_at(port: int, service: ScriptedService, **more: object) -> pb.AttachTransportResponse:
    grpc_port = int(service.address.rpartition(":")[2])
    offer = lane_pb2.LaneOffer(
        version=1, host="127.0.0.1", port=port, ticket=bytes(16), grpc_ports=[grpc_port]
    )
    for name, value in more.items():
        setattr(offer, name, value)
    response = pb.AttachTransportResponse()
    response.offer.Pack(offer)
    return response


def _framed(messages: list[bytes]) -> list[bytes]:
    """The frames of messages that have no payload outside of their head."""
    return [struct.pack("<IIQ", at, len(m), 0) + m for at, m in enumerate(messages)]


def _cut(connection: socket.socket, messages: list[bytes]) -> None:
    connection.sendall(b"".join(_framed(messages)[:9]))
    connection.shutdown(socket.SHUT_RDWR)


def _stall(connection: socket.socket, messages: list[bytes]) -> None:
    connection.sendall(b"".join(_framed(messages)[:9])[:-100])
    time.sleep(5)


def _stall_at_a_frame(connection: socket.socket, messages: list[bytes]) -> None:
    connection.sendall(b"".join(_framed(messages)[:9]) + b"\x09\x00")
    time.sleep(5)


def _trickle(connection: socket.socket, messages: list[bytes]) -> None:
    sent = b"".join(_framed(messages)[:9])
    connection.sendall(sent[:-100])
    for byte in sent[-100:]:
        time.sleep(0.1)
        connection.sendall(bytes([byte]))


def _lose(connection: socket.socket, messages: list[bytes]) -> None:
    frames = _framed(messages)
    connection.sendall(b"".join(frames[:4] + frames[5:]))


def _repeat(connection: socket.socket, messages: list[bytes]) -> None:
    frames = _framed(messages)
    connection.sendall(b"".join(frames[:4] + frames[3:]))


def _flip(connection: socket.socket, messages: list[bytes]) -> None:
    sent = bytearray(b"".join(_framed(messages)[:9]))
    sent[-50] ^= 4
    connection.sendall(bytes(sent))


def _long_head(connection: socket.socket, messages: list[bytes]) -> None:
    connection.sendall(_framed(messages)[0] + struct.pack("<IIQ", 1, 1 << 31, 0))


def _long_payload(connection: socket.socket, messages: list[bytes]) -> None:
    connection.sendall(_framed(messages)[0] + struct.pack("<IIQ", 1, 100, 1 << 62))


def _other_payload(connection: socket.socket, messages: list[bytes]) -> None:
    """The frame says a payload of 1 KiB, and the message another."""
    head = messages[1][:-1024]
    connection.sendall(_framed(messages)[0] + struct.pack("<IIQ", 1, len(head), 1024) + messages[1])


def _garbage(connection: socket.socket, messages: list[bytes]) -> None:
    """What follows is no frame."""
    connection.sendall(b"".join(_framed(messages)[:9]) + b"\x09" + bytes(3) + b"\xff" * 12)


@pytest.mark.parametrize(
    "play",
    [
        _cut,
        _stall,
        _stall_at_a_frame,
        _trickle,
        _lose,
        _repeat,
        _flip,
        _long_head,
        _long_payload,
        _other_payload,
        _garbage,
    ],
)
def test_a_lane_that_lies_costs_no_sample(
    server: Server,
    undisturbed: list[str],
    caplog: pytest.LogCaptureFixture,
    play: Callable[[socket.socket, list[bytes]], None],
) -> None:
    """The loop gets every batch once; the rest comes over gRPC, and the lane is not tried again."""
    with (
        _liar(server, play) as service,
        _trying(service.address) as dataset,
        caplog.at_level(logging.WARNING),
    ):
        seen = [_digest(batch) for batch in dataset]
        stats = dataset.stats()

    assert undisturbed == seen
    assert 1 == len(service.attached)
    assert "grpc" == stats.transport
    assert 1 == sum("cannot be used" in record.getMessage() for record in caplog.records)


def _trying(target: str) -> AbstractContextManager[RemoteDataset]:
    """A dataset that takes a lane where it can."""
    transport = Transport("auto", [Lane()], prefetch_bytes=0, deadlines=QUICK)
    return closing(_dataset(target, transport=transport))


def test_a_filtered_port_costs_a_moment_once(
    server: Server, undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing answers there. The stream goes on over gRPC, says so, and later ones do not try."""
    with ExitStack() as stack:
        # A queue that is full: the kernel drops what comes.
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        channel = stack.enter_context(grpc.insecure_channel(server.address))
        stub: Any = rpc.ShardServiceStub(channel)
        service = stack.enter_context(scripted_server(lambda asked, _: stub.ReadBatches(asked)))
        service.attach = lambda *_: iter([_offer_at(listener.getsockname()[1], service)])
        stack.enter_context(caplog.at_level(logging.WARNING))
        took, reasons = [], []
        for _ in range(2):
            began = time.monotonic()
            with _trying(service.address) as dataset:
                assert undisturbed[0] == _digest(next(iter(dataset)))
                reasons.append(dataset.stats().transport_reason)
            took.append(time.monotonic() - began)

    assert 1 == len(service.attached)
    assert "cannot be reached" in reasons[0]
    assert reasons[0].partition("no lane: ")[2] in reasons[1]
    assert took[0] < 20
    assert 1 == sum("cannot be reached" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"grpc_ports": [1]}, "a proxy is between"),
        ({"is_encrypted": True}, "it has TLS, and the call none"),
        ({"version": 2}, "it has version 2"),
        ({"host": "example.com"}, "expected an IP address"),
    ],
)
def test_what_is_not_for_this_call_is_not_tried(
    server: Server, more: dict[str, object], found: str
) -> None:
    """Each is said, and nothing is connected to."""
    del server
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        scripted_server(lambda *_: iter(())) as service,
    ):
        listener.setblocking(False)
        port = listener.getsockname()[1]

        def attach(*_: object) -> Iterator[pb.AttachTransportResponse]:
            response = _offer_at(port, service)
            offer = lane_pb2.LaneOffer()
            response.offer.Unpack(offer)
            for name, value in more.items():
                if name == "grpc_ports":
                    del offer.grpc_ports[:]
                    offer.grpc_ports.extend([1])
                else:
                    setattr(offer, name, value)
            response.offer.Pack(offer)
            yield response

        service.attach = attach
        with (
            closing(_dataset(service.address)) as dataset,
            pytest.raises(NoTransportError, match=found),
        ):
            next(iter(dataset))
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_auto_tries_the_lane_only_where_it_is_wanted(server: Server) -> None:
    """Without its options the stream comes over gRPC."""
    found = []
    for options in ([], [Lane()]):
        transport = Transport(options=options, prefetch_bytes=0, deadlines=PATIENT)
        with closing(_dataset(server.address, transport=transport)) as dataset:
            next(iter(dataset))
            found.append(dataset.stats().transport)

    assert ["grpc", "lane"] == found


@pytest.mark.parametrize("options", [["--workers=2"], []], ids=["workers", "ports"])
def test_each_process_has_a_lane_of_its_own(url: str, options: list[str]) -> None:
    """The offer names the port of the process that has the stream."""
    found = set()
    # The ports next to a free one may be those of other tests.
    ports = ["--lane=auto", "--lane-ports=30"]
    with serving({NAME: url}, *ports, *options, listen="127.0.0.1:0") as running:
        for seed in range(6):
            with closing(_dataset(running.address, seed=seed)) as dataset:
                assert SAMPLES // BATCH == len(list(dataset))
                found.add(dataset.stats().transport)

    assert {"lane"} == found


def test_a_server_without_a_lane_says_so(url: str) -> None:
    """And why."""
    with (
        _server(url, lane="off") as server,
        closing(_dataset(server.address)) as dataset,
        pytest.raises(NoTransportError, match="--lane is off"),
    ):
        next(iter(dataset))


# --- who comes in


def _asked() -> pb.AttachTransportRequest:
    asked = pb.AttachTransportRequest(
        read=pb.ReadBatchesRequest(
            dataset=NAME,
            order=pb.OrderSpec(),
            global_batch_size=BATCH,
            world_size=1,
            epoch_start=pb.EpochStart(),
        )
    )
    asked.transport.Pack(lane_pb2.Lane(version=1))
    return asked


@contextmanager
def _offered(
    server: Server, *, bearer: str = "", host: str = "127.0.0.1"
) -> Iterator[tuple[lane_pb2.LaneOffer, Any]]:
    """A call's offer, and what else the call sends."""
    metadata = (("authorization", f"Bearer {bearer}"),) if bearer else ()
    with grpc.insecure_channel(f"{host}:{server.address.rpartition(':')[2]}") as channel:
        stub: Any = rpc.ShardServiceStub(channel)
        call = stub.AttachTransport(_asked(), metadata=metadata, timeout=60)
        offer = lane_pb2.LaneOffer()
        assert next(call).offer.Unpack(offer)
        yield offer, call


def _come(
    offer: lane_pb2.LaneOffer, *, bearer: str = "", ticket: bytes = b"", source: str = "127.0.0.1"
) -> tuple[bytes, socket.socket]:
    """Show a ticket; return the answer, which is empty if the connection is closed."""
    connection = socket.create_connection((offer.host, offer.port), 30, (source, 0))
    connection.sendall(hello(ticket or offer.ticket, bearer=bearer.encode()))
    return connection.recv(ANSWER_BYTES), connection


def test_a_ticket_is_good_once(server: Server) -> None:
    """Who brings it again is refused, while the stream goes on."""
    with _offered(server) as (offer, _):
        first, lane = _come(offer)
        second, other = _come(offer)
        with closing(lane), closing(other):
            assert (_IN, _OUT) == (first, second)
            assert lane.recv(1)


def test_a_ticket_is_not_guessed(server: Server) -> None:
    """128 random bits, new for each call."""
    with _offered(server) as (offer, _), _offered(server) as (another, _):
        assert offer.ticket != another.ticket
        assert 16 == len(offer.ticket)
        said, connection = _come(offer, ticket=bytes(16))
        connection.close()

    assert _OUT == said


def test_a_ticket_is_over_with_its_call(server: Server) -> None:
    """A client that has left has none."""
    with _offered(server) as (offer, call):
        call.cancel()
        assert until(lambda: server.stream_count == 0)
        said, connection = _come(offer)
        connection.close()

    assert _OUT == said


def test_a_lane_that_breaks_ends_its_call(server: Server) -> None:
    """With the word that tells the client to read on over gRPC."""
    with _offered(server) as (offer, call):
        said, lane = _come(offer)
        lane.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lane.close()
        with pytest.raises(grpc.RpcError, match="lane broke") as caught:
            next(call)

    assert _IN == said
    found = error_from_call(caught.value, target="")
    assert isinstance(found, RebalanceError)
    assert "broken" == found.metadata["lane"]


def test_a_batch_beyond_the_limit_of_the_client_is_refused_as_over_grpc(server: Server) -> None:
    """By the same error, before memory is taken."""
    found = []
    for kind in ("grpc", "lane"):
        transport = Transport(kind, max_batch_bytes=1000, deadlines=PATIENT)
        with (
            closing(_dataset(server.address, transport=transport)) as dataset,
            pytest.raises(HeadraceError, match="1000") as caught,
        ):
            next(iter(dataset))
        found.append(str(caught.value))

    assert found[0] == found[1]


@pytest.fixture(scope="module")
def guarded(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server that wants tokens, and its file of them."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.json"
    _write_tokens(path, *_TOKENS)
    with _server(url, tokens=str(path)) as running:
        yield running, path


def _write_tokens(path: Path, *names: str) -> None:
    entries = [{"name": name, "token": _TOKENS[name], "datasets": ["*"]} for name in names]
    path.write_text(json.dumps({"tokens": entries}))


@pytest.mark.parametrize("bearer", ["", _TOKENS["other"]], ids=["none", "another"])
def test_a_ticket_is_its_callers(guarded: tuple[Server, Path], bearer: str) -> None:
    """Not even another caller of the server may use it, and then nobody may; the call ends."""
    with _offered(guarded[0], bearer=_TOKENS["reader"]) as (offer, call):
        said, connection = _come(offer, bearer=bearer)
        connection.close()
        again, connection = _come(offer, bearer=_TOKENS["reader"])
        connection.close()
        with pytest.raises(grpc.RpcError, match="did not come to its lane"):
            next(call)

    assert (_OUT, _OUT) == (said, again)


def test_with_tokens_the_address_does_not_matter(guarded: tuple[Server, Path]) -> None:
    """As where a machine has several."""
    with _offered(guarded[0], bearer=_TOKENS["reader"]) as (offer, _):
        said, connection = _come(offer, bearer=_TOKENS["reader"], source="127.0.0.3")
        connection.close()

    assert _IN == said


def test_without_tokens_the_address_is_the_callers(server: Server) -> None:
    """A ticket that was read on the wire does not work from elsewhere."""
    with _offered(server) as (offer, _):
        said, connection = _come(offer, source="127.0.0.3")
        connection.close()

    assert _OUT == said


def test_a_token_that_is_taken_away_ends_the_lane(guarded: tuple[Server, Path]) -> None:
    """Within the 2 s in which it ends streams over gRPC, though the client does not read."""
    server, path = guarded
    with _offered(server, bearer=_TOKENS["reader"]) as (offer, _):
        said, lane = _come(offer, bearer=_TOKENS["reader"])
        assert until(lambda: server.stream_count == 1)
        _write_tokens(path, "other")
        try:
            began = time.monotonic()
            assert until(lambda: server.stream_count == 0)
            took = time.monotonic() - began
        finally:
            _write_tokens(path, *_TOKENS)
            lane.close()

    assert _IN == said
    assert took < 10  # 2 s, and a busy machine


def test_ten_thousand_connections_keep_nobody_out(server: Server, undisturbed: list[str]) -> None:
    """Some stay and say nothing; the oldest are closed, and a client has its lane meanwhile."""
    with _offered(server) as (offer, _):
        pass
    before = len(list(Path("/proc/self/fd").iterdir()))
    stop = threading.Event()
    most = 0

    def attack() -> None:
        nonlocal most
        kept: list[socket.socket] = []
        for number in range(10_000):
            if stop.is_set():
                break
            with suppress(OSError):
                kept.append(
                    socket.create_connection(("127.0.0.1", offer.port), 5, ("127.0.0.4", 0))
                )
            if len(kept) > 200:
                kept.pop(0).close()
            if number % 500 == 0:
                most = max(most, len(list(Path("/proc/self/fd").iterdir())) - len(kept))
        for each in kept:
            each.close()

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        with closing(_dataset(server.address)) as dataset:
            seen = [_digest(batch) for batch in dataset]
            transport = dataset.stats().transport
    finally:
        stop.set()
        attacker.join()

    assert undisturbed == seen
    assert "lane" == transport
    assert most - before < 64 + 40


@pytest.mark.parametrize("kind", ["grpc", "lane"])
def test_a_client_that_does_not_read_holds_nobody(
    url: str, tmp_path: Path, undisturbed: list[str], kind: str
) -> None:
    """Not other callers, whose turn to send comes, and not the end of the server."""
    _write_tokens(tmp_path / "tokens.json", *_TOKENS)
    with (
        _server(url, tokens=str(tmp_path / "tokens.json"), drain_s=1.0) as server,
        _offered(server, bearer=_TOKENS["reader"]) as (offer, _),
    ):
        said, lane = _come(offer, bearer=_TOKENS["reader"])
        access = Access(auth=_TOKENS["other"])
        with closing(lane), closing(_dataset(server.address, kind=kind, access=access)) as dataset:
            seen = [_digest(batch) for batch in dataset]
            began = time.monotonic()
            server.drain()
            took = time.monotonic() - began

    assert _IN == said
    assert undisturbed == seen
    assert took < 20


def test_a_server_that_stops_ends_its_lanes(url: str, undisturbed: list[str]) -> None:
    """A drain ends a lane between two batches, and the run goes on elsewhere."""
    with _server(url) as first, _server(url) as second:
        transport = Transport("lane", prefetch_bytes=0, deadlines=PATIENT)
        with closing(
            RemoteDataset(
                [first.address, second.address],
                NAME,
                batch_size=BATCH,
                epochs=1,
                transport=transport,
            )
        ) as dataset:
            batches = iter(dataset)
            seen = [_digest(next(batches)) for _ in range(5)]
            busy = first if first.stream_count else second
            threading.Thread(target=busy.drain).start()
            seen += [_digest(batch) for batch in batches]

    assert undisturbed == seen


# --- TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The PEM files of an authority, a server, and two clients; and of a stranger."""
    folder = tmp_path_factory.mktemp("tls")
    authority, stranger = trustme.CA(), trustme.CA()
    found = {}
    for name, certificate in (
        ("server", authority.issue_cert("localhost", "127.0.0.1")),
        ("client", authority.issue_cert("trainer@example.com")),
        ("other", authority.issue_cert("trainer@example.com")),
    ):
        for kind, pem in (
            ("cert", certificate.cert_chain_pems[0]),
            ("key", certificate.private_key_pem),
        ):
            pem.write_to_path(str(folder / f"{name}.{kind}"))
            found[f"{name}.{kind}"] = str(folder / f"{name}.{kind}")
    for name, ca in (("ca", authority), ("stranger", stranger)):
        ca.cert_pem.write_to_path(str(folder / name))
        found[name] = str(folder / name)
    return found


@pytest.mark.parametrize("is_mutual", [False, True], ids=["tls", "mtls"])
def test_a_lane_is_encrypted_as_its_call_is(
    url: str, undisturbed: list[str], files: dict[str, str], *, is_mutual: bool
) -> None:
    """With the server's certificate, and that of the client where gRPC asks for one."""
    settings = {"tls_cert": files["server.cert"], "tls_key": files["server.key"]}
    tls = TlsConfig(ca=files["ca"])
    if is_mutual:
        settings["tls_client_ca"] = files["ca"]
        tls = TlsConfig(ca=files["ca"], cert=files["client.cert"], key=files["client.key"])
    access = Access(tls=tls)
    with (
        _server(url, **settings) as server,
        closing(_dataset(server.address, access=access)) as dataset,
        closing(
            _dataset(server.address, access=access, transport=Transport(options=[Lane()]))
        ) as automatic,
    ):
        seen = [_digest(batch) for batch in dataset]
        transport = dataset.stats().transport
        next(iter(automatic))
        other = automatic.stats()

    assert undisturbed == seen
    assert ("lane", "grpc") == (transport, other.transport)
    assert "slower than gRPC" in other.transport_reason


@contextmanager
def _offered_with_tls(
    server: Server, files: dict[str, str], *, cert: str = ""
) -> Iterator[lane_pb2.LaneOffer]:
    """The offer of a call with TLS, and perhaps a client's certificate."""
    pems = [Path(files[f"{cert}.{kind}"]).read_bytes() for kind in ("key", "cert") if cert]
    credentials = grpc.ssl_channel_credentials(Path(files["ca"]).read_bytes(), *pems)
    with grpc.secure_channel(server.address, credentials) as channel:
        stub: Any = rpc.ShardServiceStub(channel)
        call = stub.AttachTransport(_asked(), timeout=60)
        offer = lane_pb2.LaneOffer()
        assert next(call).offer.Unpack(offer)
        assert offer.is_encrypted
        yield offer


@pytest.mark.parametrize(("cert", "said"), [("client", _IN), ("other", _OUT)])
def test_a_ticket_is_for_the_certificate_of_its_call(
    url: str, files: dict[str, str], cert: str, said: bytes
) -> None:
    """Another one of the same authority, and even of the same name, does not do."""
    settings = {"tls_cert": files["server.cert"], "tls_key": files["server.key"]}
    with (
        _server(url, **settings, tls_client_ca=files["ca"]) as server,
        _offered_with_tls(server, files, cert="client") as offer,
    ):
        context = ssl.create_default_context(cafile=files["ca"])
        context.load_cert_chain(files[f"{cert}.cert"], files[f"{cert}.key"])
        with (
            socket.create_connection((offer.host, offer.port), 30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(hello(offer.ticket, bearer=b""))
            found = connection.recv(ANSWER_BYTES)

    assert said == found


def test_plain_text_gets_nothing_from_an_encrypted_lane(url: str, files: dict[str, str]) -> None:
    """Not even an answer, though the ticket is right."""
    with (
        _server(url, tls_cert=files["server.cert"], tls_key=files["server.key"]) as server,
        _offered_with_tls(server, files) as offer,
        socket.create_connection((offer.host, offer.port), 30) as connection,
    ):
        connection.sendall(hello(offer.ticket, bearer=b""))
        found = b""
        with suppress(ConnectionResetError):
            found = connection.recv(ANSWER_BYTES)

    assert found not in (_IN, _OUT)
