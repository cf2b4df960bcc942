"""Claims about the mesh of a job's ranks: who shares samples, and what is refused.

How it could go wrong: ranks that take another's place, so that samples come twice and others never;
a mesh of another job taken for this one's.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headrace.client import Mesh, RemoteDataset
from headrace.client.options.mesh import _OF_JOB, AXES, DATA_AXES, mesh_rank
from headrace.errors import BadArgumentError


@given(
    st.lists(st.sampled_from(AXES), min_size=1, unique=True).flatmap(
        lambda axes: st.fixed_dictionaries({axis: st.integers(1, 4) for axis in axes})
    )
)
def test_ranks_count_up_as_in_torch(sizes: dict[str, int]) -> None:
    """The last axis first; and each part of a global batch belongs to as many ranks."""
    count = math.prod(sizes.values())
    places = list(itertools.product(*map(range, sizes.values())))

    found = [mesh_rank(sizes, rank=rank, world_size=count) for rank in range(count)]

    assert torch.arange(count).view(*sizes.values()).shape == tuple(sizes.values())
    assert places == [each.at for each in found if each is not None]
    data = math.prod(size for axis, size in sizes.items() if axis in DATA_AXES)
    assert sorted([*range(data)] * (count // data)) == sorted(
        each.data[0] for each in found if each is not None
    )


def test_a_rank_may_say_where_it_is() -> None:
    """Where ranks do not count up; other axes of data count together."""
    sizes = {"tp": 2, "dp_replicate": 2, "dp_shard": 3}
    at = {"tp": 1, "dp_replicate": 1, "dp_shard": 2}

    found = mesh_rank(Mesh(sizes, at), rank=0, world_size=12)

    assert found is not None
    assert (5, 6) == found.data


@pytest.mark.parametrize("rank", range(4))
def test_where_one_rank_is_does_not_say_where_others_are(rank: int) -> None:
    """Also of a rank that is where it would be in order, as the first is: all share, or none."""
    at = {"tp": rank % 2, "dp": rank // 2}

    found = mesh_rank(Mesh({"tp": 2, "dp": 2}, at), rank=rank, world_size=4)

    assert found is not None
    assert found.sharing([]) == ()


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ({"dp": 4, "tp": 3}, "dp=4 x tp=3 has 12 ranks, but the world size is 8"),
        ({"dp": 4, "ep": 2}, "'ep'.*dp, dp_replicate, dp_shard, cp, tp, pp"),
        ({}, "mesh is {}"),
        ("dp", "mesh is 'dp'"),
        ({"dp": 0}, r"mesh\['dp'\] is 0"),
    ],
)
def test_what_is_no_mesh_of_the_job_is_refused(mesh: Any, words: str) -> None:
    """With what was found and what is wanted, before a server is asked."""
    with pytest.raises(BadArgumentError, match=words):
        RemoteDataset("localhost:1", "d", batch_size=4, rank=0, world_size=8, mesh=mesh)


@pytest.mark.parametrize("at", [{"dp": 0}, {"dp": 4, "tp": 0}])
def test_a_place_outside_of_the_mesh_is_refused(at: dict[str, int]) -> None:
    """Also one that leaves an axis out."""
    with pytest.raises(BadArgumentError, match=r"Mesh\.at"):
        Mesh({"dp": 4, "tp": 2}, at)


def test_a_mesh_of_torch_needs_names(tmp_path: Path) -> None:
    """With them it is one of sizes; the job is that of the process group."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        bare = DeviceMesh("cpu", [0])
        named = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
        found = [mesh_rank(each, rank=0, world_size=1) for each in (named, {"dp": 1, "tp": 1})]
        with pytest.raises(BadArgumentError, match="no mesh_dim_names"):
            mesh_rank(bare, rank=0, world_size=1)
    finally:
        dist.destroy_process_group()

    assert found[0] == found[1]
    assert found[0] is not None
    assert "dp=1,tp=1" == found[0].shape
    assert found[0].job


def test_launchers_name_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start, step or host is another job; without a launcher it has no name."""
    jobs = []
    local = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for host, variables in (
        ("a", {}),
        ("a", {"MASTER_PORT": "1"}),
        ("a", {"MASTER_PORT": "1", "SLURM_JOB_ID": "7"}),
        ("a", {"MASTER_PORT": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}),
        ("a", local),
        ("b", local),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("socket.gethostname", lambda host=host: host)
            for name in _OF_JOB:
                patch.delenv(name, raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            found = mesh_rank({"dp": 2}, rank=0, world_size=2)
            jobs.append(None if found is None else found.job)

    assert "" == jobs[0]
    assert 6 == len(set(jobs))
