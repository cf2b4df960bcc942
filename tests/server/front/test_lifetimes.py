"""Tests of what ends a stream whose client does not read."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import grpc

from headrace.server import Server
from headrace.storage import RowOptions
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.datasets import write_dataset
from support.packed import documents_of, index_rows, table_of
from support.running import server_of
from support.served import TIMEOUT_S, failure_of, stub_of
from support.waiting import seconds_until

_TOKEN = "a-secret-of-16-characters"  # noqa: S105 - of this test
_AS = (("authorization", f"Bearer {_TOKEN}"),)
_ENDLESS = pb.ReadBatchesRequest(
    dataset="rich", global_batch_size=500, world_size=1, epoch_start=pb.EpochStart()
)
# What may pass from its time on until a stream is over, and what a loaded machine needs.
_WITHIN_S, _SLACK_S = 2.0, 1.5


def _tokens(path: Path, *, datasets: tuple[str, ...]) -> str:
    entry = {"name": "team", "token": _TOKEN, "datasets": datasets}
    other = {"name": "other", "token": "another-secret-0123456", "datasets": ["*"]}
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"tokens": [other, *([entry] if datasets else [])]}))
    fresh.replace(path)
    return str(path)


def _is_idle(server: Server) -> bool:
    return not server.open_call_count


def test_a_client_that_never_reads_is_rotated_in_time(start: StartServer) -> None:
    """A stream that stands in a message is over two seconds after its time at the latest."""
    running = start(max_stream_s=1.0)
    call = stub_of(running.channel).ReadBatches(_ENDLESS, timeout=TIMEOUT_S)
    next(iter(call))

    # Give or take 20 %.
    assert seconds_until(lambda: _is_idle(running.server)) < 1.2 + _WITHIN_S + _SLACK_S


def test_a_revoked_token_ends_streams_whether_they_read_or_not(
    start: StartServer, tmp_path: Path
) -> None:
    """Who reads is told so; who does not is cut within two seconds."""
    path = tmp_path / "tokens"
    running = start(tokens=_tokens(path, datasets=("rich",)), max_stream_s=0)
    stub = stub_of(running.channel)
    still, read = (stub.ReadBatches(_ENDLESS, timeout=TIMEOUT_S, metadata=_AS) for _ in range(2))
    next(iter(still))
    seen: list[grpc.RpcError] = []

    def drain() -> None:
        try:
            for _ in read:
                pass
        except grpc.RpcError as error:
            seen.append(error)

    reader = threading.Thread(target=drain)
    reader.start()
    _tokens(path, datasets=())

    assert seconds_until(lambda: _is_idle(running.server)) < _WITHIN_S + _SLACK_S
    reader.join(TIMEOUT_S)
    assert (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED") == (
        seen[0].code(),
        failure_of(seen[0])[1].reason,
    )


def test_a_dataset_that_is_taken_away_ends_its_streams(start: StartServer, tmp_path: Path) -> None:
    """A caller that stays, and may read something else now, loses the stream all the same."""
    path = tmp_path / "tokens"
    running = start(tokens=_tokens(path, datasets=("rich",)), max_stream_s=0)
    call = stub_of(running.channel).ReadBatches(_ENDLESS, timeout=TIMEOUT_S, metadata=_AS)
    next(iter(call))
    _tokens(path, datasets=("other",))

    assert seconds_until(lambda: _is_idle(running.server)) < _WITHIN_S + _SLACK_S


def test_other_changes_of_the_file_end_nothing(start: StartServer, tmp_path: Path) -> None:
    """A caller whose entry stays reads on."""
    path = tmp_path / "tokens"
    running = start(tokens=_tokens(path, datasets=("rich",)), max_stream_s=0)
    call = iter(stub_of(running.channel).ReadBatches(_ENDLESS, timeout=TIMEOUT_S, metadata=_AS))
    next(call)
    _tokens(path, datasets=("rich", "other"))

    until = time.monotonic() + _WITHIN_S
    while time.monotonic() < until:
        next(call)
    assert 1 == running.server.open_call_count


def test_other_changes_of_the_file_end_no_packed_rows(tmp_path: Path) -> None:
    """Whoever may read a dataset may read its packed rows, also after a change of the file."""
    path, url = tmp_path / "tokens", str(tmp_path / "documents")
    write_dataset(url, table_of(documents_of(20, seed=5)), shard_samples=(20,), block_bytes=2048)
    index_rows(url, RowOptions(64, eos=9))
    request = pb.ReadBatchesRequest(
        dataset="d:64", global_batch_size=4, world_size=1, epoch_start=pb.EpochStart()
    )
    with (
        server_of({"d": url}, tokens=_tokens(path, datasets=("d",)), max_stream_s=0) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        call = stub_of(channel).ReadBatches(request, timeout=TIMEOUT_S, metadata=_AS)
        read = iter(call)
        next(read)
        _tokens(path, datasets=("d", "other"))

        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            next(read)
        assert 1 == server.open_call_count
