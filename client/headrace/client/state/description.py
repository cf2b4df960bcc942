"""What the arguments of a dataset describe: what is read, and from which servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.client.options.access import Access, access_of
from headrace.client.options.addresses import addresses_of
from headrace.client.options.arguments import batch_size_of, column_names, end_mode
from headrace.client.options.mesh import AnyMesh, mesh_rank
from headrace.client.options.order import Order
from headrace.client.options.sharding import Sharding, sharding_of
from headrace.client.options.stage import Stage, stages_of
from headrace.client.options.transport import Transport
from headrace.client.servers.endpoints import Endpoints
from headrace.client.servers.replicas import Seat, seat_of
from headrace.client.servers.targets import choose_endpoints, lane_of
from headrace.client.state.read_spec import Reading
from headrace.client.state.sources import Source, subject_of
from headrace.client.state.subject import Subject
from headrace.order import decode_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The arguments that all datasets take, as users give them; `RemoteDataset` explains them."""

    target: str | Sequence[str] | None
    dataset: Source
    batch_size: int | None
    seed: int
    shuffle: bool
    end: str
    end_epoch: int | None
    columns: Sequence[str]
    stages: Sequence[Stage]
    rank: int
    world_size: int
    mesh: AnyMesh | None
    access: Access | None
    order: Order
    sharding: Sharding | None
    transport: Transport

    def settled(self) -> tuple[Reading, Endpoints]:
        """Return what is read, and the servers to ask; none is contacted or started.

        Raises:
            BadArgumentError: An argument is out of range.
            ConfigurationError: There is no folder for the sockets of a private server.
        """
        fallback = self.transport.fallback
        addresses = addresses_of(self.target, dataset=self.dataset)
        subject, sources = subject_of(
            self.dataset,
            is_private=addresses is None,
            url=None if fallback is None else fallback.url,
        )
        reading = self._reading(subject)
        access, seat = access_of(self.access), _seat_of(reading)
        return reading, choose_endpoints(
            addresses, sources, access, transport=self.transport, seat=seat
        )

    def resharded(self, reading: Reading, token: bytes | None) -> Reading:
        """Return this rank's share of what another rank reads; the global batch keeps its size.

        Servers do not compare the meshes of the ranks: streams of both may be open for a moment.

        Args:
            reading: What the other rank reads.
            token: Where the share begins, if there is a token of it.

        Raises:
            BadArgumentError: The mesh has another number of ranks, or a stage does not fit to it.
        """
        size = reading.known_global_batch_size() if reading.has_size else None
        found = self._reading(reading.subject, job="")
        stages = found.order_stages
        if token is not None:
            stages = tuple(stage.adopted(decode_token(token)) for stage in stages)
        return replace(
            found,
            order=reading.order,
            order_stages=stages,
            batch_size=None,
            global_batch_size=size,
        )

    def _reading(self, subject: Subject, *, job: str | None = None) -> Reading:
        shards = sharding_of(self.sharding)
        mesh = mesh_rank(self.mesh, rank=self.rank, world_size=self.world_size, job=job)
        rank, world_size = (self.rank, self.world_size) if mesh is None else mesh.data
        return Reading(
            subject=subject,
            order=self.order.spec(seed=self.seed, shuffle=self.shuffle),
            unit_is_free=self.order.unit is None,
            batch_size=batch_size_of(self.batch_size, shards),
            global_batch_size=shards.global_batch_size,
            rank=rank,
            world_size=world_size,
            end=end_mode(self.end),
            columns=column_names(self.columns),
            with_ids=self.order.with_ids,
            order_stages=(*self.order.stages, *shards.stages, *(() if mesh is None else (mesh,))),
            stages=tuple(stage.of_rank(mesh) for stage in stages_of(self.stages)),
            end_epoch=self.end_epoch,
        )


def _seat_of(reading: Reading) -> Seat:
    lane = lane_of(reading.rank, world_size=reading.world_size, lanes=reading.order.lanes)
    return seat_of(
        rank=reading.rank, world_size=reading.world_size, seed=reading.order.seed, lane=lane
    )
