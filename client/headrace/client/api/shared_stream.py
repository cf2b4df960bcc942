"""One stream for all ranks of a host that get the same batches.

Contract:

1. The first rank reads from a server, and broadcasts each event by torch.distributed when the loops
   of all ask for it. So loops take batches together, and nothing waits behind a loop's back.
2. Whom a stream is shared with is agreed on at the first event after it was opened or closed. Ranks
   that are at different places, or do not agree to share, raise an error there, all of them.
3. What the first rank's read raises, all raise. If a rank is lost, the others raise
   `ServerUnreachableError`, at the latest after the deadlines of a read.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from headrace.client.api.live_stream import LiveStream, Mover
from headrace.client.api.stats import ClientStats
from headrace.client.batch.transformed import Transformation
from headrace.client.feeds.feed import Event
from headrace.client.feeds.transport import Landing
from headrace.client.options.transport import Transport
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.servers.status import error_of_reason
from headrace.client.wire.assembler import BatchEvent, EpochEndEvent
from headrace.client.wire.payload_layout import PayloadReader
from headrace.errors import BadArgumentError, HeadraceError, ServerUnreachableError
from headrace.v1 import shard_service_pb2 as pb

_log = logging.getLogger(__name__)

# What comes: nothing more, a batch, the end of an epoch, or the error of the rank that reads.
_END, _BATCH, _EPOCH_END, _FAILURE = range(4)


@dataclass(frozen=True, slots=True)
class Sharing:
    """With whom a rank may share a stream.

    Attributes:
        ranks: The ranks that get the same, this one included.
        reads: What is read for them, by the names of options; the same on all of them.
        read_for: Called on each rank with the ranks of its host: the first reads what all of them
            need from now on. Returns the columns that this rank takes none of.
        no_ring: Why the ranks do not share memory instead. Empty if a broadcast was asked for: a
            rank that cannot share then raises an error.
    """

    ranks: tuple[int, ...]
    reads: Mapping[str, str]
    read_for: Callable[[Sequence[int]], AbstractSet[str]]
    no_ring: str


_ALONE = Sharing((), {}, lambda _: frozenset(), "it is another process")
_NONE: AbstractSet[str] = frozenset()


class SharedStream(LiveStream):
    """A stream whose events come from the first of several ranks, which reads it."""

    def __init__(
        self,
        transport: Transport,
        transformation: Transformation | None = None,
        make_mover: Callable[[], Mover] | None = None,
        *,
        sharing: Callable[[], Sharing] | None = None,
        place: Callable[[], Place] | None = None,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            transport: How the rank that reads does so.
            transformation: See `LiveStream`; called where the stream is not shared, as in another
                process.
            make_mover: The same.
            sharing: Returns with whom to share; None to share with nobody, as in a forked process.
            place: Returns the place after the last event that the loop got.
        """
        # The loop of a shared stream transforms batches itself.
        super().__init__(transport, transformation if sharing is None else None, make_mover)
        self._alone = transformation
        self._of_rank, self._place_now = sharing, place
        self._group: _Group | None = None
        self._is_joined, self._why, self._left_out = False, "", _NONE

    def __reduce__(
        self,
    ) -> tuple[
        type[LiveStream], tuple[Transport, Transformation | None, Callable[[], Mover] | None]
    ]:
        """Unpickle as a stream of this process alone."""
        return LiveStream, (self._wanted, self._alone, self._make_mover)

    def next_event(self, make_reader: Callable[[Landing], BatchReader]) -> Event | None:
        """Take the next event together with the other ranks; see `LiveStream.next_event`."""
        if self.is_broken:
            # What the others got is not known here, so all agree on the place again.
            self.close()
        if not self._is_joined:
            self._join()
        group = self._group
        if group is None:
            return super().next_event(make_reader)
        if not group.reads:
            return self._own(group.receive())
        try:
            event = super().next_event(make_reader)
        except HeadraceError as error:
            group.send(_FAILURE, f"{error.reason}\0{error.message}".encode())
            raise
        group.send_event(event, self.columns)
        return self._own(event)

    def _own(self, event: Event | None) -> Event | None:
        """Return an event with the columns of this rank."""
        if not self._left_out or not isinstance(event, BatchEvent):
            return event
        columns = {name: at for name, at in event.columns.items() if name not in self._left_out}
        return BatchEvent(event.header, columns, event.payload, ahead=event.ahead)

    @property
    def may_stay(self) -> bool:
        return self._group is None and super().may_stay

    def _end(self) -> None:
        # The next event is agreed on again.
        self._is_joined = False
        super()._end()

    def stats(self) -> ClientStats:
        """Return the sum over all streams of this process, and how the last one came."""
        found = super().stats()
        if self._group is not None and not self._group.reads:
            return replace(found, transport="broadcast", transport_reason=self._why)
        reason = "; ".join(filter(None, (found.transport_reason, self._why)))
        return replace(found, transport_reason=reason)

    def transform_by(self, transformation: Transformation | None) -> None:
        """Call another function in the processes to come; the loop transforms batches here."""
        self._alone = transformation

    def _join(self) -> None:
        self._group = None
        sharing = _ALONE if self._of_rank is None else self._of_rank()
        why = _why_alone(sharing)
        if why:
            if not sharing.no_ring:
                raise BadArgumentError(
                    f"share='broadcast', but {why}; expected share='auto' to read alone then",
                    field="sharding",
                )
            self._why, self._left_out = f"not shared: {why}", sharing.read_for([])
        else:
            self._agree(sharing)
        if sharing.no_ring:
            self._why += f" (by a broadcast, since {sharing.no_ring})"
        _log.info("%s", self._why)
        self._is_joined = True

    def _agree(self, sharing: Sharing) -> None:
        deadlines = self._wanted.deadlines
        timeout_s = deadlines.connect_s + deadlines.give_up_s
        group = _Group(sharing.ranks, timeout_s=timeout_s)
        assert self._place_now is not None
        own, place = socket.gethostname(), self._place_now()
        at = (place.epoch, place.position, place.token)
        gathered = group.gathered((own, at, dict(sharing.reads)))
        found = [(host, each) for host, each, _ in gathered]
        places = {each for _, each in found}
        if len(places) > 1:
            described = ", ".join(
                f"rank {rank} at epoch {epoch}, position {position}"
                for rank, (_, (epoch, position, _)) in zip(sharing.ranks, found, strict=True)
            )
            raise BadArgumentError(
                f"ranks that share a stream are at different places: {described}; load the same "
                "state on all of them",
                field="sharding",
            )
        _check_reads(sharing.ranks, [each for *_, each in gathered])
        here = tuple(
            rank for rank, (host, _) in zip(sharing.ranks, found, strict=True) if host == own
        )
        if here == sharing.ranks:
            self._group = group
        else:
            self._group = None if len(here) == 1 else _Group(here, timeout_s=timeout_s)
        self._left_out = sharing.read_for([] if self._group is None else here)
        if self._group is None:
            self._why = f"not shared: no other rank on {own} gets the same"
        else:
            shared = ", ".join(map(str, here))
            self._why = f"shared: rank {here[0]} reads and broadcasts to the ranks {shared}"


def _why_alone(sharing: Sharing) -> str:
    """Return why a stream cannot be shared; empty if it can."""
    if get_worker_info() is not None:
        return "DataLoader workers read for themselves"
    if not (dist.is_available() and dist.is_initialized()):
        return "torch.distributed is not initialised in this process"
    if not sharing.ranks:
        return "no mesh says which ranks get the same (Mesh.at says where one rank is)"
    if dist.get_rank() not in sharing.ranks or dist.get_world_size() <= max(sharing.ranks):
        return (
            f"rank {dist.get_rank()} of {dist.get_world_size()} of torch.distributed is none of "
            f"the ranks {', '.join(map(str, sharing.ranks))} of the mesh"
        )
    if len(sharing.ranks) == 1:
        return "no other rank gets the same"
    return ""


def _check_reads(ranks: Sequence[int], reads: Sequence[Mapping[str, str]]) -> None:
    for rank, each in zip(ranks, reads, strict=True):
        for name, first in reads[0].items():
            if each[name] != first:
                raise BadArgumentError(
                    f"ranks that share a stream read different batches: {name} is {first} on rank "
                    f"{ranks[0]}, but {each[name]} on rank {rank}; give all of them the same",
                    field="sharding",
                )


class _Group:
    """The ranks that share a stream, and what goes between them."""

    def __init__(self, ranks: Sequence[int], *, timeout_s: float) -> None:
        self._group = _connected(tuple(ranks), timeout_s)
        self._first = ranks[0]
        self._count = len(ranks)
        self.reads = dist.get_rank() == ranks[0]
        self._sent: tuple[pb.Column, ...] | None = None
        self._layout = PayloadReader(())

    def gathered(self, own: object) -> list[Any]:
        """Return what each rank gave."""
        found: list[Any] = [None] * self._count
        try:
            dist.all_gather_object(found, own, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return found

    def send_event(self, event: Event | None, columns: tuple[pb.Column, ...]) -> None:
        """Send an event from the rank that reads."""
        if event is None:
            self.send(_END)
        elif isinstance(event, BatchEvent):
            start = b""
            if columns is not self._sent:
                start = pb.StreamStart(columns=columns).SerializeToString()
                self._sent = columns
            self.send(_BATCH, event.header.SerializeToString(), start, event.payload)
        else:
            end = pb.EpochEnd(epoch=event.epoch, resume_token=event.resume_token)
            self.send(_EPOCH_END, end.SerializeToString())

    def send(
        self,
        kind: int,
        head: bytes = b"",
        start: bytes = b"",
        payload: NDArray[np.uint8] | None = None,
    ) -> None:
        """Send the parts of an event from the rank that reads."""
        size = 0 if payload is None else payload.size
        self._broadcast(torch.tensor([kind, len(head), len(start), size]))
        self._broadcast(_tensor(np.frombuffer(head + start, np.uint8).copy()))
        if payload is not None:
            self._broadcast(_tensor(payload))

    def receive(self) -> Event | None:
        """Take the next event from the rank that reads.

        Raises:
            HeadraceError: The rank that reads has failed, or is lost.
        """
        sizes = torch.zeros(4, dtype=torch.int64)
        self._broadcast(sizes)
        kind, head_size, start_size, size = sizes.tolist()
        parts = np.empty(head_size + start_size, np.uint8)
        self._broadcast(_tensor(parts))
        head, start = parts[:head_size].tobytes(), parts[head_size:].tobytes()
        if kind == _END:
            return None
        if kind == _FAILURE:
            reason, _, message = head.decode().partition("\0")
            raise error_of_reason(reason, f"rank {self._first}, which reads: {message}", {})
        if kind == _EPOCH_END:
            end = pb.EpochEnd.FromString(head)
            return EpochEndEvent(end.epoch, end.resume_token)
        if start:
            self._layout = PayloadReader(pb.StreamStart.FromString(start).columns)
        payload = np.empty(size, np.uint8)
        self._broadcast(_tensor(payload))
        header = pb.BatchHeader.FromString(head)
        count = header.sample_count
        columns = self._layout.decode(header.buffer_bytes, payload, sample_count=count)
        return BatchEvent(header, columns, payload)

    def _broadcast(self, tensor: torch.Tensor) -> None:
        if not tensor.numel():
            return
        try:
            dist.broadcast(tensor, self._first, group=self._group)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> ServerUnreachableError:
        return ServerUnreachableError(
            f"a rank that shares the stream of rank {self._first} is lost, or its loop is "
            f"elsewhere: {error}; start the group again from the last checkpoint"
        )


_connections: dict[tuple[int, ...], tuple[Any, Any]] = {}


def _connected(ranks: tuple[int, ...], timeout_s: float) -> Any:
    """Return a process group of ranks for streams alone, made once by all of them.

    It has no order of operations to keep with those of the loop, and sends from the memory of the
    CPU, whatever backend the loop has. It stays: another one of the same ranks would look for them
    at the addresses of the first.
    """
    world, group = _connections.get(ranks, (None, None))
    if world is not dist.group.WORLD:
        group = dist.new_group(
            list(ranks),
            backend="gloo",
            timeout=timedelta(seconds=timeout_s),
            use_local_synchronization=True,
        )
        _connections[ranks] = dist.group.WORLD, group
    return group


def _tensor(memory: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(memory)
