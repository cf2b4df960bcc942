"""Meshes: the open streams of a job are compared, because ranks that disagree would lose samples.

The stage is a `Mesh` in requests. Tokens say nothing about it: it changes no order.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Hashable
from weakref import WeakSet, WeakValueDictionary

from headrace.errors import BadArgumentError
from headrace.server.datasets.order_stage import OrderStage
from headrace.server.datasets.served import Served
from headrace.server.plan.stream_request import ReadRequest, batches_of, check_range
from headrace.server.stream.order_plugs import OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics
from headrace.v1.meshes_pb2 import Mesh

_MOST_TEXT = 200
_MOST_NAME = 64
_TEXT = re.compile(r"(?:[a-z_]+=[1-9][0-9]{0,9})(?:,[a-z_]+=[1-9][0-9]{0,9})*(?: [0-9a-f]{16})?")
_DATA = "dp"


class Meshed(OrderStage):
    """What a rank of a mesh reads; as long as its stream is open, others are compared with it.

    Args:
        inner: What it reads.
        mesh: The options.
        peers: The open streams that are compared.
    """

    def __init__(self, inner: Served, mesh: Mesh, peers: Peers) -> None:
        super().__init__(inner)
        self.mesh, self.peers = mesh, peers


class Peers(WeakSet[Meshed]):
    """Open streams that must have one mesh; the streams keep it."""


class Plug(OrderPlug):
    """Compares the ranks of a job, if a request says which mesh they form."""

    name = "mesh"
    options = Mesh
    after = ("skips", "buckets", "deal")

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._lock = threading.Lock()
        self._jobs: WeakValueDictionary[Hashable, Peers] = WeakValueDictionary()

    def reading(self, served: Served, request: ReadRequest) -> Served:
        """Return what is read, if no rank of the job that started there has another mesh.

        Raises:
            BadArgumentError: One has, or the mesh does not fit to the request.
        """
        mesh = request.options(Mesh)
        if mesh is None:
            return served
        _check(mesh, request)
        if not mesh.job:
            return served
        key = _key(mesh, served, request)
        with self._lock:
            peers = self._jobs.get(key)
            if peers is None:
                peers = self._jobs[key] = Peers()
            # A rank that reads again from there may do so in another mesh.
            others = (each.mesh for each in peers if each.mesh.rank != mesh.rank)
            other = next((each for each in others if each.text != mesh.text), None)
            if other is not None:
                raise BadArgumentError(
                    f"rank {mesh.rank} has the mesh {mesh.text}, but rank {other.rank} of the same "
                    f"job, which reads from the same place, has {other.text}; give all ranks the "
                    "same mesh=",
                    field="mesh",
                )
            found = Meshed(served, mesh, peers)
            peers.add(found)
            return found


def _check(mesh: Mesh, request: ReadRequest) -> None:
    if len(mesh.text) > _MOST_TEXT or not _TEXT.fullmatch(mesh.text) or len(mesh.job) > _MOST_NAME:
        raise BadArgumentError(
            f"mesh is {mesh.text[:_MOST_TEXT]!r} of the job {mesh.job[:_MOST_NAME]!r}; expected "
            "axes with sizes, such as 'dp=4,cp=2', and a job of at most "
            f"{_MOST_NAME} characters",
            field="mesh",
        )
    axes = [axis.split("=") for axis in mesh.text.split(" ")[0].split(",")]
    count = math.prod(int(size) for _, size in axes)
    parts = math.prod(int(size) for axis, size in axes if axis.startswith(_DATA))
    check_range("mesh.rank", mesh.rank, low=0, high=count)
    world_size = batches_of(request).world_size
    if parts != world_size:
        raise BadArgumentError(
            f"mesh {mesh.text} has {parts} parts of a global batch, but world_size is "
            f"{world_size}; it must be the same",
            field="mesh",
        )


def _key(mesh: Mesh, served: Served, request: ReadRequest) -> Hashable:
    """Return what is equal for streams that a job's ranks open together."""
    batches = batches_of(request)
    return (
        # Others may guess the job's name: whoever they are, their streams refuse none of its ranks.
        request.caller,
        mesh.job,
        served.name,
        served.readable.fingerprint,
        # Not the rest of the order: its unit is the global batch, which another mesh changes.
        batches.order.seed,
        batches.epoch_start.SerializeToString(deterministic=True),
        batches.resume_token,
    )
