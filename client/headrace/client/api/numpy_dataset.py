"""Batches as NumPy arrays, for loops without torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from headrace.arguments import whole
from headrace.client.api.epoch_loops import EpochLoops
from headrace.client.api.live_stream import LiveStream, open_reader
from headrace.client.api.missing_methods import raise_missing
from headrace.client.api.new_loops import NewLoops
from headrace.client.batch.classes import Classes
from headrace.client.batch.transformed import TransformedEvent, transform_of
from headrace.client.feeds.transport import Landing, TransportState
from headrace.client.loader.steps import commit, next_place, place_at
from headrace.client.options.access import Access
from headrace.client.options.arguments import (
    epoch_limit,
    token_bytes,
)
from headrace.client.options.mesh import AnyMesh, check_mesh_given
from headrace.client.options.order import Order, order_of
from headrace.client.options.ranks import resolve_ranks
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.selection import Selection
from headrace.client.options.sharding import Sharding, sharding_of
from headrace.client.options.stage import Stage
from headrace.client.options.transport import Transport, transport_of
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.servers.unary import fetch_from_any
from headrace.client.sharing.group import shared_reading, way_to_share
from headrace.client.sharing.host_feeds import Group
from headrace.client.state.description import Description
from headrace.client.state.read_spec import Reading
from headrace.client.wire.assembler import BatchEvent
from headrace.client.wire.buffers import aligned
from headrace.client.wire.payload_layout import ColumnView
from headrace.errors import BadArgumentError
from headrace.order import decode_token
from headrace.payload import BFLOAT16, SAMPLE_ID_COLUMN
from headrace.v1 import shard_service_pb2 as pb

Arrays = dict[str, NDArray[Any]]
_T = TypeVar("_T")
if TYPE_CHECKING:
    # Defaults of type variables are new in Python 3.13.
    import typing_extensions

    ArraysResult = typing_extensions.TypeVar("ArraysResult", default=Arrays)
else:
    ArraysResult = TypeVar("ArraysResult")
"""What a loop gets: what ``transform=`` returns, and `Arrays` without it."""

_COUNT_LIMIT = 1 << 31


class NumpyDataset(Generic[ArraysResult]):
    """Iterate over the batches of one rank as dictionaries of NumPy arrays.

    ``for arrays in dataset`` yields the rest of the current epoch; the next ``for`` continues after
    the last batch handed over. Columns of numbers are ``(samples, *shape)``; strings, bytes and
    ragged columns are object arrays of `str`, `bytes` and arrays, with `None` for null. A column of
    numbers that may hold nulls has a second entry ``name.valid``. The loop owns the memory of a
    batch for as long as it keeps one of its arrays. Between two loops the stream stays open and
    reads ahead, until `close` or the end of the ``with`` block.

    Examples:
        >>> with NumpyDataset(address, "numbers", batch_size=5, shuffle=False, epochs=1) as dataset:
        ...     for batch in dataset:
        ...         print(batch["x"])
        [0 1 2 3 4]
        [5 6 7 8 9]
    """

    def __init__(
        self,
        target: str | Sequence[str] | None,
        dataset: str | Selection,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        end: Literal["drop_last", "uneven", "pad"] = "drop_last",
        columns: Sequence[str] = (),
        stages: Sequence[Stage] = (),
        transform: Callable[[Arrays], ArraysResult] | None = None,
        rank: int = 0,
        world_size: int = 1,
        mesh: AnyMesh | None = None,
        access: Access | None = None,
        order: Order | None = None,
        sharding: Sharding | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Describe what to read. No server is contacted or started before the first batch.

        Args:
            target: Address of a server, or several; None for a private one on this machine.
            dataset: The dataset's name on the server; its URL for a private server; a `Selection`
                for some of its samples.
            batch_size: Samples per batch of this rank, >= 1; None if ``sharding`` has the size of
                the global batch.
            seed: Seed of the order, >= 0.
            shuffle: False for storage order.
            epochs: Number of epochs; None to continue without end.
            end: What happens to an incomplete last batch, as for `RemoteDataset`.
            columns: Names of the columns to read; empty for all.
            stages: What the server does with each batch, as for `RemoteDataset`.
            transform: Called with each batch's arrays, in the thread that reads ahead; the loop
                gets its result.
            rank: This rank, in ``[0, world_size)``.
            world_size: Number of ranks.
            mesh: The axes of the ranks, as for `RemoteDataset`.
            access: TLS and a bearer token; None for plain text without a token.
            order: How far samples are shuffled, as for `RemoteDataset`. Arrays have no sample ids.
            sharding: How global batches are divided among ranks; None for `Sharding()`.
            transport: How batches travel, and how long to wait, as for `RemoteDataset`.

        Raises:
            BadArgumentError: An argument is out of range.
            ConfigurationError: There is no folder for the sockets of a private server.
        """
        world_size = whole("world_size", world_size, low=1, high=_COUNT_LIMIT)
        rank = whole("rank", rank, low=0, high=world_size)
        self._transport = transport_of(transport)
        self._described = Description(
            target=target,
            dataset=dataset,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            end=end,
            end_epoch=epoch_limit(epochs),
            columns=columns,
            stages=stages,
            rank=rank,
            world_size=world_size,
            mesh=mesh,
            access=access,
            order=replace(order_of(order), with_ids=False),
            sharding=sharding,
            transport=self._transport,
        )
        reading, self._endpoints = self._described.settled()
        self._has_mesh = mesh is not None
        self._way, why = way_to_share(self._described)
        if self._way == "broadcast":
            raise BadArgumentError(
                f"sharding.share is {sharding_of(sharding).share!r}, but a NumpyDataset has no "
                f"torch.distributed to broadcast by{why and ', and '}{why}; expected 'ring' or "
                "None, or use RemoteDataset",
                field="sharding",
            )
        if not reading.subject.name:
            raise BadArgumentError(
                "dataset is a mixture, which NumpyDataset does not read; expected the name of one "
                "dataset, or use RemoteDataset",
                field="dataset",
            )
        self._reading = reading
        self._options, self._group = self._shared(reading)
        self._transform = transform_of(transform)
        self._live = LiveStream(
            self._transport,
            None if self._transform is None else partial(_transformed, self._transform),
        )
        self._loops = EpochLoops(self._live)
        self._progress = self._loops.progress
        self._new_loops = NewLoops(reading.subject.title)
        self._classes: Classes | None = None

    def __copy__(self) -> Self:
        """Return a dataset with a place of its own, as a deep copy has."""
        return deepcopy(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise_missing(self, name)

    @property
    def token(self) -> bytes | None:
        """The resume token after the last batch handed over; None before the first.

        In a loop that calls `committed`, that after the last committed step.
        """
        return self._progress.settled.token

    def resume(self, token: bytes | None) -> Self:
        """Continue after a batch with the next ``for``; return the dataset.

        Args:
            token: `token` of another dataset, or `Batch.token`; None to stay.

        Raises:
            TokenMalformedError: ``token`` is damaged.
        """
        if token is not None:
            place = Place.after(token_bytes(token))
            self.close()
            self._progress.move(place)
        return self

    def reshard(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: AnyMesh | None = None,
        at_step: int | None = None,
    ) -> None:
        """Read the share of another rank from a step on, as `RemoteDataset.reshard` says.

        Raises:
            BadArgumentError: An argument is out of range. Nothing has changed then.
            HeadraceError: ``at_step`` is not the next step, and no server says how long an epoch
                is.
        """
        stays = rank is None and world_size is None
        if not stays:
            check_mesh_given(mesh, has_mesh=self._has_mesh)
        elif mesh is not None:
            raise BadArgumentError(
                "mesh is given without rank= and world_size=, which NumpyDataset takes from "
                "nowhere else; give both",
                field="rank",
            )
        turns = self._loops.turns
        turns.take()
        try:
            place = next_place(self._progress, at_step, self._place_of)
            options, group = self._options, self._group
            if not stays:
                rank, world_size = resolve_ranks(rank, world_size)
                share = replace(self._described, rank=rank, world_size=world_size, mesh=mesh)
                found, group = self._shared(share.resharded(self._reading, place.token))
                options = replace(found, order=options.order)
            now = (self._progress.place, self._options, self._group)
            if (place, options, group) != now:
                self._live.reopen()
                self._options, self._group = options, group
                self._progress.reshard(place)
                self._has_mesh = mesh is not None or (stays and self._has_mesh)
        finally:
            turns.end()

    def committed(self, step: int) -> None:
        """Note that a step was taken, counted from 0, as `RemoteDataset.committed` says.

        Raises:
            BadArgumentError: The loop has not got its batch, or a later step is committed.
        """
        commit(self._progress, step, self._place_of)

    def _place_of(self, step: int) -> Place:
        start, seen = self._progress.moved_to, self._progress.place.token
        subject, options = self._reading.subject, self._options
        if seen is not None:
            subject = subject.at(decode_token(seen), {})

        def fetch(wanted: Sequence[pb.GetDatasetRequest]) -> list[pb.Dataset]:
            answers = fetch_from_any(self._endpoints, wanted, deadlines=self._transport.deadlines)
            return [answer.dataset for answer in answers]

        reading = replace(self._reading, subject=subject.described(fetch))
        self._reading = replace(
            reading, batch_size=None, global_batch_size=options.global_batch_size
        )
        return place_at(
            step,
            start=start,
            plan_from=lambda position: self._reading.plan(position, start.token),
            first_token=seen or self._reading.first_token(epoch=0, position=0),
        )

    @property
    def transform(self) -> Callable[[Arrays], Any] | None:
        """The function that is applied to each batch before the loop gets it, or None."""
        return self._transform

    @property
    def transport(self) -> str:
        """How batches arrive: ``ring`` or ``grpc``; empty before the first stream."""
        return self._live.stats().transport

    @property
    def transport_reason(self) -> str:
        """Why it is gRPC, or why a ring is smaller than requested; otherwise empty."""
        return self._live.stats().transport_reason

    @property
    def classes(self) -> Classes:
        """Names of the classes of label columns: ``dataset.classes["label"][i]`` is the name of i.

        The names belong to the version that is read; before the first batch, to the one that the
        server has now. The server is asked at the first access, and when the version has changed.
        -1 in a column means no class; do not look it up in the names.

        Raises:
            HeadraceError: No server answers, or it has no such dataset.
        """
        token = self.token
        version = "" if token is None else decode_token(token).fingerprint
        name = self._options.dataset
        known = self._classes
        if known is None or (version and known.versions != [(name, version)]):
            wanted = pb.GetDatasetRequest(name=name, fingerprint=version)
            answers = fetch_from_any(self._endpoints, [wanted], deadlines=self._transport.deadlines)
            known = self._classes = Classes(answers)
        return known

    def __iter__(self) -> Iterator[ArraysResult]:
        """Yield the batches that the current epoch has left.

        Raises:
            HeadraceError: No further batch can be read; the next ``for`` tries again from there.
        """
        if self._transform is None:
            return cast("Iterator[ArraysResult]", self._rest_of_epoch(_arrays_of))
        return self._rest_of_epoch(_result_of)

    def views(self) -> Generator[dict[str, ColumnView], None, None]:
        """Yield batches as views of their memory, with strings and bytes undecoded.

        Raises:
            BadArgumentError: The dataset has a transform.
        """
        if self._transform is not None:
            raise BadArgumentError(
                "views() needs a dataset without transform=, which decides what batches are; "
                "expected no transform=, or a loop over the dataset itself",
                field="transform",
            )
        return self._rest_of_epoch(_columns_of)

    def _rest_of_epoch(self, value_of: Callable[[BatchEvent], _T]) -> Generator[_T, None, None]:
        if self._has_ended():
            return
        if self._progress.is_left and self._new_loops.leave_epoch(self._progress):
            self.leave_epoch()
        yield from self._loops.rest_of_epoch(self._make_reader, value_of)
        if self._has_ended():
            self.close()

    def _has_ended(self) -> bool:
        end = self._options.end_epoch
        return end is not None and self._progress.place.epoch >= end

    def leave_epoch(self) -> None:
        """Move to the next epoch if some of this one was read, but not all."""
        progress = self._progress
        if progress.is_left:
            self.close()
            progress.move(progress.place.moved(progress.place.epoch + 1, 0))

    def close(self) -> None:
        """Drop the connection and the prefetched batches; the next ``for`` still continues."""
        self._live.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def peek(self) -> dict[str, ColumnView]:
        """Return the columns of the next batch, which stays the next; empty after the last."""
        # One batch is not worth a ring.
        wanted = replace(self._transport, kind="grpc")
        landing = Landing(aligned, None, TransportState(), max_batch_bytes=wanted.max_batch_bytes)
        reader = self._make_reader(landing, wanted)
        try:
            event = next(reader.events(), None)
        finally:
            reader.close()
        left_out = frozenset() if self._group is None else self._group.left_out
        columns = event.columns if isinstance(event, BatchEvent) else {}
        return {name: view for name, view in columns.items() if name not in left_out}

    def _make_reader(self, landing: Landing, wanted: Transport | None = None) -> BatchReader:
        place, transport = self._progress.place, wanted or self._transport
        group = self._group if wanted is None else None
        return open_reader(self._endpoints, self._options, place, transport, landing, group=group)

    def _shared(self, reading: Reading) -> tuple[ReadOptions, Group | None]:
        """Return what to ask for, and with whom to share it."""
        if self._way is None:
            return reading.options(None), None
        common, group = shared_reading(reading, self._described)
        return common.options(None), group


def _columns_of(event: BatchEvent) -> dict[str, ColumnView]:
    return event.columns


def _result_of(event: BatchEvent) -> Any:
    assert isinstance(event, TransformedEvent)
    return event.result


def _arrays_of(event: BatchEvent) -> Arrays:
    return arrays_of(event.columns)


def _transformed(function: Callable[[Arrays], Any], event: BatchEvent) -> object:
    return function(arrays_of(event.columns))


def arrays_of(columns: dict[str, ColumnView]) -> Arrays:
    """Return the columns as arrays; those of numbers share the batch's memory."""
    arrays: Arrays = {}
    for name, view in columns.items():
        if name == SAMPLE_ID_COLUMN:
            continue
        if view.kind == pb.COLUMN_KIND_TENSOR:
            is_bits = view.values.dtype == BFLOAT16
            arrays[name] = view.values.view(np.uint16) if is_bits else view.values
        else:
            arrays[name] = _objects(view)
        if view.valid is not None:
            arrays[f"{name}.valid"] = view.valid
    return arrays


def _objects(view: ColumnView) -> NDArray[np.object_]:
    assert view.offsets is not None
    ends = view.offsets.tolist()
    objects = np.empty(len(ends) - 1, np.object_)
    for index in range(len(objects)):
        objects[index] = _object(view.values[ends[index] : ends[index + 1]], view.kind)
    if view.valid is not None:
        objects[~view.valid] = None
    return objects


def _object(value: NDArray[np.generic], kind: int) -> object:
    if kind == pb.COLUMN_KIND_RAGGED:
        return value
    content = value.tobytes()
    return content.decode() if kind == pb.COLUMN_KIND_STRING else content
