"""Compressed messages: the batches of gRPC, in fewer bytes where they shrink.

How they could give a wrong sample: a block is damaged, lies about its size, or is mixed up with a
message that is not compressed. How they could hang, or take all memory: a small message that says
it is large. How they could let somebody in: not more than gRPC, whose call it is.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.request import urlopen

import grpc
import lz4.block
import numpy as np
import pyarrow as pa
import pytest
import torch

from headrace.client import Batch, RemoteDataset, Transport
from headrace.client.transports.lz4 import feed
from headrace.client.wire.frames import payload_alone
from headrace.errors import NoTransportError, StreamCorruptError
from headrace.server import Server
from headrace.server.batch.targets import payload_message
from headrace.server.transports.lz4 import compression
from headrace.v1 import lz4_pb2
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc
from support.datasets import write_dataset
from support.running import server_of

SAMPLES = 4096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of ids that shrink, of bytes that do not, and of both."""
    random = np.random.default_rng(3)
    shrinks = pa.array(list(random.integers(0, 50, (SAMPLES, 256), np.int32)))
    noise = pa.array([random.bytes(1024) for _ in range(SAMPLES)])
    folder = tmp_path_factory.mktemp("lz4")
    tables = {
        "ids": pa.table({"x": shrinks.cast(pa.list_(pa.int32(), 256))}),
        "noise": pa.table({"x": noise}),
        "both": pa.table({"x": shrinks.cast(pa.list_(pa.int32(), 256)), "y": noise}),
    }
    for name, table in tables.items():
        write_dataset(str(folder / name), table, shard_samples=[SAMPLES], block_bytes=1 << 18)
    with server_of(
        {name: str(folder / name) for name in tables}, metrics_listen="127.0.0.1:0"
    ) as running:
        yield running


def _dataset(server: Server, name: str, kind: str = "lz4", **options: Any) -> RemoteDataset:
    given = {"batch_size": 64, "epochs": 1, **options}
    return RemoteDataset(server.address, name, transport=Transport(kind), **given)


def _digest(batch: Batch) -> str:
    whole = hashlib.sha256(batch.token)
    for name in ("x", "y"):
        if name in batch:
            value = batch[name]
            whole.update(
                value.numpy().tobytes()
                if isinstance(value, torch.Tensor)
                else repr(list(value)).encode()
            )
    return whole.hexdigest()


@pytest.mark.parametrize("name", ["ids", "noise", "both"])
@pytest.mark.parametrize("batch_size", [1, 64, 4096], ids=["grouped", "some", "parts"])
def test_its_batches_are_those_of_grpc(server: Server, name: str, batch_size: int) -> None:
    """Several in a message, one in a message, and one of several messages."""
    found = []
    for kind in ("grpc", "lz4"):
        with closing(_dataset(server, name, kind, batch_size=batch_size)) as dataset:
            found.append([_digest(batch) for batch in itertools.islice(dataset, 300)])
            stats = dataset.stats()

    assert found[0] == found[1]
    assert ("lz4", "") == (stats.transport, stats.transport_reason)


def test_a_run_goes_on_over_the_other_transport(server: Server) -> None:
    """A token is a place in the order, however its batch came."""
    with closing(_dataset(server, "ids", "grpc")) as dataset:
        undisturbed = [_digest(batch) for batch in dataset]
    seen: list[str] = []
    token = None
    for kind in ("lz4", "grpc", "lz4"):
        with closing(_dataset(server, "ids", kind)) as dataset:
            dataset.load_state_dict(token) if token else None
            count = 20 if len(seen) < 40 else 100
            seen += [_digest(batch) for batch in itertools.islice(dataset, count)]
            token = dataset.state_dict()

    assert undisturbed == seen


def test_a_stream_may_be_left_anywhere(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Also while the next batches are made in another thread, whose plans are then closed."""
    with caplog.at_level("WARNING"):
        for count in range(3, 33):
            with closing(_dataset(server, "ids", batch_size=16, epochs=None)) as dataset:
                assert count == sum(1 for _ in itertools.islice(dataset, count))

    assert [] == caplog.messages


def test_metrics_say_what_it_saves(server: Server) -> None:
    """And that noise is not sent larger than it is."""

    def counted() -> tuple[float, float]:
        with urlopen(f"http://{server.metrics_address}/metrics", timeout=60) as answer:
            values = dict(
                re.findall(r"^(headrace_lz4_\w+) (\S+)$", answer.read().decode(), re.MULTILINE)
            )
        before, after = (
            values["headrace_lz4_message_bytes_total"],
            values["headrace_lz4_sent_bytes_total"],
        )
        return float(before), float(after)

    saved = {}
    for name in ("ids", "noise"):
        start = counted()
        with closing(_dataset(server, name)) as dataset:
            assert SAMPLES == sum(batch.sample_count for batch in dataset)
        before, after = (end - begin for end, begin in zip(counted(), start, strict=True))
        saved[name] = after / before

    assert saved["ids"] < 0.5
    assert 1.0 == saved["noise"]


@pytest.mark.parametrize("side", ["client", "server"])
def test_without_the_package_it_says_which_side_lacks_it(
    server: Server, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what to install."""
    if side == "client":
        monkeypatch.setattr(feed, "decompress", None)
    else:
        monkeypatch.setattr(compression, "compress", None)
    wanted = "no lz4 package here" if side == "client" else "this server has no lz4 package"
    with closing(_dataset(server, "ids")) as dataset, pytest.raises(NoTransportError, match=wanted):
        next(iter(dataset))


def test_auto_never_compresses(server: Server) -> None:
    """Who has the bandwidth would pay with processor time for nothing."""
    with closing(_dataset(server, "ids", "auto")) as dataset:
        next(iter(dataset))
        assert "grpc" == dataset.stats().transport


def test_another_version_is_refused(server: Server) -> None:
    """Before anything is sent that the client could not read."""
    asked = pb.AttachTransportRequest(read=pb.ReadBatchesRequest(dataset="ids"))
    asked.read.order.SetInParent()
    asked.read.global_batch_size = asked.read.world_size = 1
    asked.read.epoch_start.SetInParent()
    asked.transport.Pack(lz4_pb2.Lz4(version=2))
    with (
        grpc.insecure_channel(server.address) as channel,
        pytest.raises(grpc.RpcError, match="version 2 of compressed messages"),
    ):
        list(rpc.ShardServiceStub(channel).AttachTransport(asked, timeout=30))


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that a server has tried to compress."""
    tried: list[bytes] = []

    def counted(message: bytes) -> bytes:
        tried.append(message)
        block: bytes = lz4.block.compress(message)
        return block

    monkeypatch.setattr(compression, "compress", counted)
    return tried


def test_what_does_not_shrink_is_tried_ever_less_often(tries: list[bytes]) -> None:
    """And at once again when something has."""
    noise, zeros = np.random.default_rng(1).bytes(4096), bytes(4096)
    outlet = compression.Lz4Outlet(1 << 20, group_bytes=0, on_message=lambda *_: None)
    assert [noise] * 1000 == list(outlet.carried(iter([noise] * 1000)))
    first = len(tries)
    sent = list(outlet.carried(iter([zeros] * 100)))

    assert 10 < first < 25
    assert len(sent[-1]) < 64
    assert 35 < sum(len(each) < 64 for each in sent)


def test_a_column_that_does_not_shrink_leaves_the_others_alone(tries: list[bytes]) -> None:
    """Its messages are hardly tried any more; those at the same place in later batches shrink."""
    noise, zeros = np.random.default_rng(1).bytes(4096), bytes(4096)
    first = pb.ReadBatchesResponse(batch=pb.BatchHeader(payload_bytes=1)).SerializeToString()
    other = pb.ReadBatchesResponse(chunk=pb.Chunk(payload_offset=1)).SerializeToString()
    batch = [first + noise, *[other + noise] * 8, other + zeros]
    outlet = compression.Lz4Outlet(1 << 20, group_bytes=0, on_message=lambda *_: None)
    sent = list(outlet.carried(iter(batch * 100)))

    assert 100 == sum(len(each) < 64 for each in sent)
    assert 9 * 100 == sum(each in {first + noise, other + noise} for each in sent)
    assert len(tries) < 100 + 9 * 10


def _block(content: bytes, size: int | None = None) -> bytes:
    raw = lz4.block.compress(content, store_size=False)
    return payload_message(struct.pack("<I", len(content) if size is None else size) + raw)


_HOSTILE = {
    "01 no size": payload_message(b"\1\2"),
    "02 empty": payload_message(b""),
    "03 a bomb by its size": _block(bytes(1000), 1 << 31),
    "04 larger than a message": _block(bytes((4 << 20) + 1)),
    "05 says less": _block(bytes(1000), 999),
    "06 says more": _block(bytes(1000), 1001),
    "07 says nothing": _block(bytes(1000), 0),
    "08 noise": payload_message(struct.pack("<I", 1000) + np.random.default_rng(5).bytes(400)),
    "09 more than a payload": _block(bytes(1000)) + b"\x2a\x00",
    "10 cut": _block(bytes(range(256)) * 20)[:-9],
    "11 a payload that says more": b"\xc2\x3e\xff\x7f1234567",
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_message_is_refused(name: str) -> None:
    """With what is wrong, and without memory for what it says."""
    with pytest.raises(StreamCorruptError, match="message"):
        feed._content(payload_alone(_HOSTILE[name]) or memoryview(b""))


def test_a_message_of_either_kind_is_told_apart() -> None:
    """By its first bytes, which are golden: they are a format."""
    message = payload_message(lz4.block.compress(b"headrace " * 20))
    block = payload_alone(message)

    assert block is not None
    assert b"headrace " * 20 == feed._content(block)
    assert "c23e" == message[:2].hex()
    assert (
        payload_alone(pb.ReadBatchesResponse(epoch_end=pb.EpochEnd()).SerializeToString()) is None
    )
