"""The mesh of a job's ranks: which of them get the same samples, and which a part of each."""

from __future__ import annotations

import math
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.arguments import shown, whole
from headrace.client.options.stage import OrderStage
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
    "SLURM_RESTART_COUNT",
)


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
        ranks: A digest of the mesh's ranks; empty if they count up.
        job: Names the job, so that a server can compare its ranks; empty for no name.
    """

    sizes: tuple[tuple[str, int], ...]
    at: tuple[int, ...]
    ranks: str = ""
    job: str = ""

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

    @property
    def shape(self) -> str:
        """The axes with their sizes, as servers compare them."""
        sizes = ",".join(f"{axis}={size}" for axis, size in self.sizes)
        return f"{sizes} {self.ranks}".rstrip()

    def to_message(self) -> meshes_pb2.Mesh:
        """Write it down for the wire."""
        return meshes_pb2.Mesh(text=self.shape, rank=self.part(*AXES)[0], job=self.job)


def mesh_rank(mesh: AnyMesh | None, *, rank: int, world_size: int) -> MeshRank | None:
    """Return the place of a rank in the mesh that an argument means; None for no mesh.

    Args:
        mesh: A ``DeviceMesh`` of torch, a `Mesh`, or its sizes.
        rank: The rank of this process.
        world_size: The number of processes.

    Raises:
        BadArgumentError: It is no mesh of so many ranks.
    """
    if mesh is None:
        return None
    if _is_device_mesh(mesh):
        found, ranks = _of_torch(mesh)
    else:
        found, ranks = mesh if isinstance(mesh, Mesh) else Mesh(mesh), ""  # type: ignore[arg-type]
    sizes = tuple((axis, int(size)) for axis, size in found.sizes.items())
    count = math.prod(size for _, size in sizes)
    if count != world_size:
        product = " x ".join(f"{axis}={size}" for axis, size in sizes)
        raise BadArgumentError(
            f"mesh {product} has {count} ranks, but the world size is {world_size}; expected sizes "
            "whose product is the world size",
            field="mesh",
        )
    at = _counted([size for _, size in sizes], rank)
    if found.at is not None:
        at = tuple(int(found.at[axis]) for axis, _ in sizes)
    return MeshRank(sizes, at, ranks, _job())


def _counted(sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    at = []
    for size in reversed(sizes):
        rank, index = divmod(rank, size)
        at.append(index)
    return tuple(reversed(at))


def _is_device_mesh(mesh: object) -> bool:
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(mesh, module.DeviceMesh)


def _of_torch(mesh: Any) -> tuple[Mesh, str]:
    """Return a mesh of torch's, and a digest of its ranks; empty if they count up."""
    names, at = mesh.mesh_dim_names, mesh.get_coordinate()
    if names is None or at is None:
        found = "has no mesh_dim_names" if names is None else "does not have this rank"
        raise BadArgumentError(
            f"mesh is a DeviceMesh that {found}; expected the mesh of all ranks, made with "
            "init_device_mesh(…, mesh_dim_names=('dp', 'cp', 'tp'))",
            field="mesh",
        )
    ranks = mesh.mesh.flatten().tolist()
    sizes = dict(zip(names, mesh.mesh.shape, strict=True))
    is_counted = ranks == list(range(len(ranks)))
    digest = "" if is_counted else blake2b(repr(ranks).encode(), digest_size=8).hexdigest()
    return Mesh(sizes, dict(zip(names, at, strict=True))), digest


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
    return blake2b("\0".join(given).encode(), digest_size=16).hexdigest()
