"""Releases beside one another: old clients and tokens with today's server, and the reverse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import grpc
import pytest
import xxhash

from headrace.client import Order, RemoteDataset
from headrace.v1 import shard_service_pb2 as pb
from support.running import server_of
from support.served import read
from upgrade.old_schema import OldSchema
from upgrade.stored import GOLDEN, follow, stored_tokens

# None before the first release.
_RELEASES = sorted(path.name for path in GOLDEN.glob("*"))
_ROOT = Path(__file__).parents[2]


@pytest.fixture(params=_RELEASES)
def release(request: pytest.FixtureRequest) -> Path:
    """Each release that left something behind."""
    return GOLDEN / str(request.param)


@pytest.fixture
def address(release: Path) -> Iterator[str]:
    """Today's server of the dataset that the release wrote."""
    with server_of({"ds": str(release / "dataset")}) as server:
        yield server.address


def test_stored_tokens_go_on_as_they_would_have(release: Path, address: str) -> None:
    """After each token of the release today's server sends the batches that followed then."""
    with grpc.insecure_channel(address) as channel:
        for stored in stored_tokens(release):
            found = follow(channel, bytes.fromhex(stored.token))

            assert stored.epoch == found.batches[0].header.epoch
            assert stored.next_ids == found.ids[:2]


def test_an_old_client_reads_from_todays_server(release: Path, address: str) -> None:
    """With the stubs of the release: every call answers, and every batch is whole."""
    old = OldSchema(release)
    with grpc.insecure_channel(address) as channel:
        request = old.message("ReadBatchesRequest")(
            dataset="ds",
            global_batch_size=12,
            world_size=2,
            epoch_start=old.message("EpochStart")(),
            epoch_count=1,
            with_ids=True,
        )
        messages = list(old.call(channel, "ReadBatches")(request, timeout=240))
        described = old.call(channel, "GetDataset")(
            old.message("GetDatasetRequest")(name="ds"), timeout=240
        )
        today = read(channel, pb.ReadBatchesRequest.FromString(request.SerializeToString()))

    batches = [message for message in messages if message.WhichOneof("event") == "batch"]
    assert 120 == described.dataset.sample_count
    assert 10 == len(batches) == len(today.batches)
    assert today.tokens == [message.batch.resume_token for message in batches]
    assert all(
        xxhash.xxh3_64_intdigest(message.payload) == message.batch.payload_xxh3
        for message in batches
    )
    assert 1 == sum(message.WhichOneof("event") == "epoch_end" for message in messages)


def test_todays_client_reads_from_an_old_server(release: Path, address: str) -> None:
    """Through a server that knows the release's calls and fields alone, the loop sees the same."""
    with OldSchema(release).relay(address) as old:
        found = [_epoch(where) for where in (address, old)]

    assert found[0] == found[1]
    assert 10 == len(found[0])


def _epoch(address: str) -> list[tuple[bytes, list[int]]]:
    """Read half of an epoch, and the rest from the state, as another dataset would."""
    batches = []
    dataset = RemoteDataset(
        address, "ds", batch_size=12, seed=1, epochs=1, order=Order(with_ids=True)
    )
    for batch in dataset:
        assert batch.sample_ids is not None
        batches.append((batch.token, batch.sample_ids.tolist()))
        if len(batches) == 5:
            break
    state = dataset.state_dict()
    dataset.close()
    resumed = RemoteDataset(
        address, "ds", batch_size=12, seed=1, epochs=1, order=Order(with_ids=True)
    )
    resumed.load_state_dict(state)
    for batch in resumed:
        assert batch.sample_ids is not None
        batches.append((batch.token, batch.sample_ids.tolist()))
    resumed.close()
    return batches


def test_the_relay_drops_what_an_old_server_does_not_know(release: Path, address: str) -> None:
    """Otherwise the test above would prove nothing: a field of the future does not pass it."""
    old = OldSchema(release)
    future = pb.GetDatasetRequest(name="ds").SerializeToString() + b"\xf2\x3f\x01x"  # field 1022
    with old.relay(address) as relay, grpc.insecure_channel(relay) as channel:
        call = _raw(channel, "GetDataset")
        answer = pb.GetDatasetResponse.FromString(call(future, timeout=240))
        with pytest.raises(grpc.RpcError) as refused:
            _raw(channel, "NotYetThought")(b"", timeout=240)

    assert "ds" == answer.dataset.name
    assert grpc.StatusCode.UNIMPLEMENTED == refused.value.code()


def _raw(channel: grpc.Channel, method: str) -> Callable[..., bytes]:
    return cast(
        "Callable[..., bytes]",
        channel.unary_unary(f"/headrace.v1.ShardService/{method}", bytes, bytes),
    )


def test_the_schema_breaks_no_release(release: Path) -> None:
    """No field, number, type or call of the release is gone or means something else."""
    buf = Path(sys.executable).parent / "buf"

    done = subprocess.run(
        [buf, "breaking", "--against", release / "schema.binpb"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stdout + done.stderr)
