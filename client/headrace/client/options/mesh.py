"""The mesh of a job's ranks: which of them get the same samples, and which a part of each."""

from __future__ import annotations

import math
import os
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.arguments import shown, whole
from headrace.client.options.stage import OrderStage, Stage
from headrace.errors import BadArgumentError
from headrace.v1 import meshes_pb2

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AnyMesh: TypeAlias = "DeviceMesh | Mesh | Mapping[str, int]"

DATA_AXES = ("dp", "dp_replicate", "dp_shard")
AXES = (*DATA_AXES, "cp", "tp", "pp")

_WANTED = "a DeviceMesh with names, or sizes such as {'dp': 4, 'cp': 2, 'tp': 2}"
_MOST_RANKS = 1 << 31
# What launchers give all processes of one start of a job, and nobody else.
_OF_JOB = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
)
_OF_THIS_HOST = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes of a mesh of ranks, with the place of this rank if ranks do not count up in it.

    Ranks that differ on ``dp``, ``dp_replicate`` or ``dp_shard`` get samples of their own; those
    that differ on others get the same, of which a `Slice` may cut parts.

    Attributes:
        sizes: Each axis with its number of ranks, >= 1, the slowest axis first.
        at: The index of this rank on each axis, in [0, size); None to take them from its rank,
            which counts up along the last axis first, as that of torch's ``init_device_mesh``.

    Raises:
        BadArgumentError: An axis is unknown, or a number is out of range.
    """

    sizes: Mapping[str, int]
    at: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        """Refuse unknown axes, and numbers that are out of range."""
        given: object = self.sizes
        if not isinstance(given, Mapping) or not given:
            raise BadArgumentError(f"mesh is {shown(given)}; expected {_WANTED}", field="mesh")
        for axis, size in self.sizes.items():
            if axis not in AXES:
                raise BadArgumentError(
                    f"mesh has the axis {shown(axis)}; expected axes of {', '.join(AXES)}, which "
                    "say who shares samples",
                    field="mesh",
                )
            whole(f"mesh[{axis!r}]", size, low=1, high=_MOST_RANKS)
        if self.at is None:
            return
        if set(self.at) != set(self.sizes):
            raise BadArgumentError(
                f"mesh has the axes {', '.join(self.sizes)}, but Mesh.at has "
                f"{', '.join(map(str, self.at))}; expected the index of this rank on each axis",
                field="mesh",
            )
        for axis, index in self.at.items():
            whole(f"Mesh.at[{axis!r}]", index, low=0, high=self.sizes[axis])


@dataclass(frozen=True, slots=True)
class MeshRank(OrderStage):
    """One rank of a mesh.

    Attributes:
        sizes: Each axis with its size, the slowest first.
        at: The index of the rank on each.
        job: Names the job, so that a server can compare its ranks; empty for no name.
        numbers: The ranks of the mesh, along the last axis first; empty if they are not known.
    """

    sizes: tuple[tuple[str, int], ...]
    at: tuple[int, ...]
    job: str = ""
    numbers: Sequence[int] = ()

    def part(self, *axes: str) -> tuple[int, int]:
        """Return the index of the rank on some axes together, and their number of ranks."""
        index, count = 0, 1
        for (axis, size), at in zip(self.sizes, self.at, strict=True):
            if axis in axes:
                index, count = index * size + at, count * size
        return index, count

    @property
    def data(self) -> tuple[int, int]:
        """Which part of each global batch the rank gets, and how many parts there are."""
        return self.part(*DATA_AXES)

    def sharing(self, stages: Sequence[Stage]) -> tuple[int, ...]:
        """Return the ranks that get the same as this one; empty if the ranks are not known.

        Args:
            stages: What servers do with each batch of this rank.
        """
        return tuple(
            number
            for number, other in zip(self.numbers, self._all(), strict=False)
            if other.data == self.data
            and all(stage.for_all((self, other)) is not None for stage in stages)
        )

    def of_numbers(self, numbers: Sequence[int]) -> list[MeshRank]:
        """Return ranks of the mesh by their numbers."""
        by_number = dict(zip(self.numbers, self._all(), strict=False))
        return [by_number[number] for number in numbers]

    def _all(self) -> Iterator[MeshRank]:
        sizes = [size for _, size in self.sizes]
        return (replace(self, at=_counted(sizes, at)) for at in range(math.prod(sizes)))

    @property
    def shape(self) -> str:
        """The axes with their sizes, as servers compare them; with a digest of unusual ranks."""
        sizes = ",".join(f"{axis}={size}" for axis, size in self.sizes)
        if not self.numbers or self.numbers == range(len(self.numbers)):
            return sizes
        return f"{sizes} {blake2b(repr(self.numbers).encode(), digest_size=8).hexdigest()}"

    def to_message(self) -> meshes_pb2.Mesh:
        """Write it down for the wire."""
        return meshes_pb2.Mesh(text=self.shape, rank=self.part(*AXES)[0], job=self.job)


def mesh_rank(
    mesh: AnyMesh | None, *, rank: int, world_size: int, job: str | None = None
) -> MeshRank | None:
    """Return the place of a rank in the mesh that an argument means; None for no mesh.

    Args:
        mesh: A ``DeviceMesh`` of torch, a `Mesh`, or its sizes.
        rank: The rank of this process.
        world_size: The number of processes.
        job: The name of the job; empty for none, None for that which all its ranks know.

    Raises:
        BadArgumentError: It is not a mesh, or has another number of ranks than the job.
    """
    if mesh is None:
        return None
    numbers: Sequence[int]
    if _is_device_mesh(mesh):
        found, numbers = _of_torch(mesh)
    else:
        found = mesh if isinstance(mesh, Mesh) else Mesh(mesh)  # type: ignore[arg-type]
        numbers = ()
    sizes = tuple((axis, int(size)) for axis, size in found.sizes.items())
    count = math.prod(size for _, size in sizes)
    if count != world_size:
        product = " x ".join(f"{axis}={size}" for axis, size in sizes)
        raise BadArgumentError(
            f"mesh {product} has {count} ranks, but the world size is {world_size}; expected sizes "
            "whose product is the world size",
            field="mesh",
        )
    if found.at is None:
        at, numbers = _counted([size for _, size in sizes], rank), range(count)
    else:
        # Where this rank is, even if it is there in order, does not say where others are.
        at = tuple(int(found.at[axis]) for axis, _ in sizes)
    return MeshRank(sizes, at, _job() if job is None else job, numbers)


def check_mesh_given(mesh: object, *, has_mesh: bool) -> None:
    """Refuse to take the ranks of a mesh for ranks with samples of their own.

    Raises:
        BadArgumentError: A dataset with a mesh is given none for its new ranks.
    """
    if has_mesh and mesh is None:
        raise BadArgumentError(
            "the dataset has a mesh, and reshard() gives it other ranks without one; expected "
            f"mesh=, {_WANTED}",
            field="mesh",
        )


def _counted(sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    at = []
    for size in reversed(sizes):
        rank, index = divmod(rank, size)
        at.append(index)
    return tuple(reversed(at))


def _is_device_mesh(mesh: object) -> bool:
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(mesh, module.DeviceMesh)


def _of_torch(mesh: Any) -> tuple[Mesh, Sequence[int]]:
    """Return a mesh of torch's, and its ranks."""
    names, at = mesh.mesh_dim_names, mesh.get_coordinate()
    if names is None or at is None:
        found = "has no mesh_dim_names" if names is None else "does not have this rank"
        raise BadArgumentError(
            f"mesh is a DeviceMesh that {found}; expected the mesh of all ranks, made with "
            "init_device_mesh(…, mesh_dim_names=('dp', 'cp', 'tp'))",
            field="mesh",
        )
    ranks, counted = mesh.mesh.flatten().tolist(), range(mesh.mesh.numel())
    sizes = dict(zip(names, mesh.mesh.shape, strict=True))
    made = Mesh(sizes, dict(zip(names, at, strict=True)))
    return made, counted if ranks == list(counted) else tuple(ranks)


def _job() -> str:
    """Return a name that all ranks of this start of the job have, and no other job."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        # A connection of its own: others may wait on theirs.
        store = distributed.distributed_c10d._get_default_store().clone()  # noqa: SLF001 - nothing public has it
        return bytes(store.compare_set("headrace/job", "", uuid.uuid4().hex)).decode()
    given = [os.environ.get(name, "") for name in _OF_JOB]
    if not any(given):
        return ""
    if os.environ.get("MASTER_ADDR") in _OF_THIS_HOST:
        # The same for jobs of other hosts.
        given.append(socket.gethostname())
    return blake2b("\0".join(given).encode(), digest_size=16).hexdigest()
