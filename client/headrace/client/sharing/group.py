"""Find out with whom a rank of a mesh shares, and what to read for all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from headrace.client.options.mesh import AXES, MeshRank
from headrace.client.options.sharding import sharding_of
from headrace.client.options.stage import Stage
from headrace.client.sharing.host_feeds import Group, why_no_memory
from headrace.client.state.description import Description
from headrace.client.state.read_spec import Reading
from headrace.errors import BadArgumentError

Way = Literal["ring", "broadcast"]

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


def way_to_share(described: Description) -> tuple[Way | None, str]:
    """Return how ranks are to share what they get, and why not through memory.

    Raises:
        BadArgumentError: It must be through memory, which is not possible.
    """
    wanted = sharding_of(described.sharding).share
    if wanted in (None, "broadcast"):
        return wanted, ""
    why = why_no_memory()
    if described.transport.hedge is not None:
        why = "Transport(hedge=…) asks a second server for each rank"
    if why and wanted == "ring":
        raise BadArgumentError(
            f"share='ring', but {why}; expected share='auto', or None", field="sharding"
        )
    return ("broadcast" if why else "ring"), why


def shared_reading(
    reading: Reading, described: Description, *, environment: Mapping[str, str] | None = None
) -> tuple[Reading, Group]:
    """Return what to read for all ranks of this host that can share, and with whom to share it.

    Args:
        reading: What this rank reads.
        described: From which servers.
        environment: Says how many ranks a host has; None for this process's.
    """
    mesh, ranks = _mesh_of(reading), ranks_that_share(reading)
    if mesh is None or not ranks:
        return reading, Group(
            alone="no mesh says which ranks get the same (Mesh.at says where one rank is)"
        )
    own = mesh.numbers[mesh.part(*AXES)[0]]
    here = _on_host(ranks, own, os.environ if environment is None else environment)
    why = why_no_memory() or ("no other rank of this host gets the same" if len(here) == 1 else "")
    if why:
        return reading, Group(alone=why)
    # All ask in the same words: as the first of them.
    first = mesh.of_numbers(here)[0]
    order_stages = tuple(first if each is mesh else each for each in reading.order_stages)
    stages, left_out = stages_for(reading, here)
    common = replace(reading, stages=stages, order_stages=order_stages)
    return common, Group(_name_of(described), left_out, len(here))


def ranks_that_share(reading: Reading) -> tuple[int, ...]:
    """Return the ranks of the mesh that can share what this one reads; empty without a mesh."""
    mesh = _mesh_of(reading)
    return () if mesh is None else mesh.sharing(reading.stages)


def stages_for(reading: Reading, ranks: Sequence[int]) -> tuple[tuple[Stage, ...], frozenset[str]]:
    """Return stages whose batches have what some ranks need.

    Args:
        reading: What this rank reads.
        ranks: The ranks; empty for this one alone.

    Returns:
        The stages, and the columns of their batches that this rank takes none of.
    """
    mesh, own = _mesh_of(reading), reading.stages
    peers = [] if mesh is None else mesh.of_numbers(ranks)
    stages = tuple((peers and stage.for_all(peers)) or stage for stage in own)
    given = {name for stage in stages for name in stage.left_out}
    return stages, frozenset(name for stage in own for name in stage.left_out) - given


def _mesh_of(reading: Reading) -> MeshRank | None:
    return next((each for each in reading.order_stages if isinstance(each, MeshRank)), None)


def _name_of(described: Description) -> str:
    """Return what tells apart those who ask in the same words; it holds secrets."""
    access = described.access
    token = access.auth if access is not None and isinstance(access.auth, str) else ""
    return f"{described.target!r} {described.dataset!r} {access!r} {token}"


def _on_host(ranks: tuple[int, ...], own: int, environment: Mapping[str, str]) -> list[int]:
    """Return the ranks of this host: launchers number those of each host one after another."""
    given = next((environment[name] for name in _LOCAL_SIZES if name in environment), "")
    size = int(given) if given.isdecimal() else 0
    return [rank for rank in ranks if not size or rank // size == own // size]
