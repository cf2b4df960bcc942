"""Claims about peers that disagree about their mesh: the server refuses the later one.

How it could go wrong: ranks of one job with two meshes read on, and lose samples; jobs that have
nothing to do with each other, or one that starts again in another mesh, are refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.client import Access, RemoteDataset
from headrace.errors import BadArgumentError
from headrace.server import Server
from headrace.v1 import meshes_pb2
from headrace.v1.stages import packed
from support.datasets import write_rows
from support.running import server_of
from support.served import epoch_request, failure_of, read


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of rows."""
    url = str(tmp_path_factory.mktemp("d"))
    write_rows(url, sample_count=400, width=4)
    with server_of({"d": url}) as running:
        yield running


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A job for each test."""
    monkeypatch.setenv("SLURM_JOB_ID", request.node.name)


def _dataset(server: Server, mesh: dict[str, int], rank: int, **options: Any) -> RemoteDataset:
    given = {"rank": rank, "world_size": 8, "mesh": mesh, "batch_size": 2}
    return RemoteDataset(server.address, "d", **{**given, **options})


def test_ranks_that_share_a_part_get_the_same_batches(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four parts, which are those of four ranks without a mesh."""
    mesh = {"pp": 2, "dp": 4}
    found = []
    for rank in range(8):
        with _dataset(server, mesh, rank) as dataset:
            found.append([batch["x"].tolist() for batch in dataset])
    # Streams end a little later than their clients.
    monkeypatch.setenv("SLURM_JOB_ID", "another")
    wanted = []
    for rank in range(4):
        with _dataset(server, {"dp": 4}, rank, world_size=4) as dataset:
            wanted.append([batch["x"].tolist() for batch in dataset])

    assert wanted * 2 == found


def test_peers_that_disagree_are_refused_with_both_meshes(server: Server) -> None:
    """While the stream of one is open; the others read on."""
    with _dataset(server, {"dp": 4, "tp": 2}, 0) as first:
        batches = iter(first)
        next(batches)
        with (
            _dataset(server, {"dp": 2, "tp": 4}, 5) as other,
            pytest.raises(
                BadArgumentError, match=r"rank 5 has the mesh dp=2,tp=4, but rank 0.*dp=4,tp=2"
            ),
        ):
            next(iter(other))
        with _dataset(server, {"dp": 4, "tp": 2}, 5) as agreed:
            next(iter(agreed))

        assert 49 == sum(1 for _ in batches)


@pytest.mark.parametrize("change", ["job", "place", "seed", "rank"])
def test_others_are_not_compared(
    server: Server, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job, place or order; or the rank itself, which starts again."""
    with _dataset(server, {"dp": 4, "tp": 2}, 0) as first:
        next(iter(first))
        if change == "job":
            monkeypatch.setenv("SLURM_JOB_ID", "another")
        options = {"seed": 1} if change == "seed" else {}
        with _dataset(server, {"dp": 2, "tp": 4}, 0 if change == "rank" else 5, **options) as other:
            if change == "place":
                other.seek(0, 16)
                next(iter(other))


def test_another_caller_refuses_nobody(tmp_path: Path) -> None:
    """Who guesses the name of a job can open streams of another mesh, and only its own count."""
    url, tokens = str(tmp_path / "d"), ("reader-a-0123456789", "reader-b-0123456789")
    write_rows(url, sample_count=64, width=4)
    entries = [{"name": each[:8], "token": each, "datasets": ["d"]} for each in tokens]
    (tmp_path / "callers.json").write_text(json.dumps({"tokens": entries}))
    with server_of({"d": url}, tokens=str(tmp_path / "callers.json")) as server:
        own, other = (Access(auth=token) for token in tokens)
        with _dataset(server, {"dp": 4, "tp": 2}, 0, access=other) as stranger:
            next(iter(stranger))
            with _dataset(server, {"dp": 2, "tp": 4}, 5, access=own) as rank:
                next(iter(rank))
            with (
                _dataset(server, {"dp": 2, "tp": 4}, 5, access=other) as same,
                pytest.raises(BadArgumentError, match=r"rank 0 of the same job"),
            ):
                next(iter(same))


def test_a_job_that_has_ended_is_not_compared(server: Server) -> None:
    """Its streams are forgotten when they end, so that it may go on in another mesh."""
    with _dataset(server, {"dp": 4, "tp": 2}, 0) as first:
        next(iter(first))
    deadline = time.monotonic() + 20
    with _dataset(server, {"dp": 2, "tp": 4}, 5) as other:
        while True:
            try:
                next(iter(other))
            except BadArgumentError:
                assert time.monotonic() < deadline
            else:
                break


@pytest.mark.parametrize(
    ("mesh", "field"),
    [
        ({"text": "dp=4,tp=2"}, "mesh"),
        ({"text": "dp=2", "rank": 2}, "mesh.rank"),
        ({"text": "dp=0"}, "mesh"),
        ({"text": "dp=2;" * 99}, "mesh"),
        ({"text": "dp=2", "job": "j" * 65}, "mesh"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(server: Server, mesh: dict[str, Any], field: str) -> None:
    """Whoever sends it."""
    request = epoch_request(
        dataset="d",
        global_batch_size=4,
        world_size=2,
        stages=[packed(meshes_pb2.Mesh(**mesh))],
    )
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
        read(channel, request)

    assert field == failure_of(caught.value)[1].metadata["field"]
