"""A tenant who may write its own folder plants an index of what belongs to others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.client import RemoteDataset
from headrace.errors import HeadraceError
from headrace.storage import open_dataset, open_store, store_index
from headrace.v1 import shard_service_pb2 as pb
from support.running import server_of
from support.s3 import S3
from support.served import TIMEOUT_S, failure_of, stub_of
from support.shards import numbered_batch, write_shards_of

_SECRET = pa.table({"patient": ["Ada Lovelace", "Grace Hopper"]})


def _write_secret(url: str) -> str:
    """Write what the tenant may not read; return its fingerprint."""
    sink = pa.BufferOutputStream()
    pq.write_table(_SECRET, sink)
    open_store(url).write("patients.parquet", sink.getvalue().to_pybytes())
    with open_dataset(url) as dataset:
        return dataset.fingerprint


def _plant(own: str, scratch: Path, change: Mapping[str, object]) -> None:
    """Put a true index of the secret into the tenant's folder, and change what it says."""
    copied = str(scratch / "copied")
    _write_secret(copied)
    store_index(copied, str(scratch / "index"))
    pointer = json.loads((scratch / "index" / "headrace.json").read_text())
    content = (scratch / "index" / pointer["index"]["name"]).read_bytes()
    store = open_store(own)
    store.write(pointer["index"]["name"], content)
    store.write("headrace.json", json.dumps({**pointer, **change}).encode())


def _said(address: str, fingerprint: str) -> str:
    """Return what a server says of a version of the tenant's dataset."""
    with grpc.insecure_channel(address) as channel:
        request = pb.GetSamplesRequest(dataset="own", fingerprint=fingerprint, sample_ids=[0])
        with pytest.raises(grpc.RpcError) as caught:
            list(stub_of(channel).GetSamples(request, timeout=TIMEOUT_S))
    _, info = failure_of(caught.value)
    return f"{caught.value.details()} {info}"


@pytest.mark.parametrize("kind", ["disk", "bucket"])
@pytest.mark.parametrize("version", [2, 3])
def test_an_index_that_is_planted_under_a_running_server_opens_nothing(
    kind: str, version: int, tmp_path: Path, s3: S3
) -> None:
    """A request that names its version is refused, and learns no size, tag or place of others."""
    root = str(tmp_path / "stored") if kind == "disk" else s3.url("stored")
    own, other = f"{root}/own", f"{root}/secret"
    write_shards_of(own, [numbered_batch(0, 5)])
    fingerprint = _write_secret(other)
    (entry,) = open_store(other).list_entries()
    with server_of({"own": own}) as server:
        for name in (other, "../secret", f"cached://::{other}", "secret"):
            _plant(own, tmp_path / "scratch", {"version": version, "url": name, "path": name})
            shutil.rmtree(tmp_path / "scratch")
            said = _said(server.address, fingerprint)

            for told in (other, "Ada", str(entry.stored_bytes), entry.version, "patients"):
                assert told not in said, (name, said)


def test_a_private_server_and_a_reader_open_no_planted_index(tmp_path: Path) -> None:
    """A job that reads a folder of someone else reads what is in it, or is told."""
    own, other = str(tmp_path / "own"), str(tmp_path / "secret")
    fingerprint = _write_secret(other)
    _plant(own, tmp_path / "scratch", {"version": 2, "url": other})

    with pytest.raises(HeadraceError, match="headrace index SOURCE --to INDEX"):
        open_dataset(own)
    with pytest.raises(HeadraceError, match="headrace index SOURCE --to INDEX"):
        next(iter(RemoteDataset(None, own, batch_size=1)))
    store_index(other, own)
    with pytest.raises(HeadraceError, match="name them"):
        open_dataset(own)
    named = f"{own} from {other}"
    with open_dataset(named) as dataset:
        assert fingerprint == dataset.fingerprint
    (batch,) = RemoteDataset(None, named, batch_size=2, shuffle=False, epochs=1)
    assert ["Ada Lovelace", "Grace Hopper"] == list(batch["patient"])
