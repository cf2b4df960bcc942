"""The dataset that a training loop iterates."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

from headrace.arguments import shown, whole
from headrace.client.api.epoch_loops import EpochLoops
from headrace.client.api.live_stream import LiveStream, open_reader
from headrace.client.api.missing_methods import raise_missing
from headrace.client.api.new_loops import NewLoops
from headrace.client.api.shared_stream import SharedStream, Sharing
from headrace.client.api.stats import ClientStats
from headrace.client.api.stats_log import Log, StatsLog
from headrace.client.api.stats_reporter import Reporter
from headrace.client.batch.batch import Batch
from headrace.client.batch.classes import Classes
from headrace.client.batch.handover import register_owner
from headrace.client.batch.kinds import stored
from headrace.client.batch.results import Result, WorkerResult, on_batches_of
from headrace.client.batch.transformed import TransformedEvent, called
from headrace.client.device.cuda_copy import checked_device
from headrace.client.device.device_ring import ring_to
from headrace.client.feeds.feed import Event
from headrace.client.feeds.transport import Landing
from headrace.client.frameworks.accelerate import known_to_accelerate, refuse_prepared
from headrace.client.frameworks.callers import FRAMEWORKS
from headrace.client.loader.parent_watch import end_with_main_process
from headrace.client.loader.progress import LoopStart
from headrace.client.loader.steps import commit, next_place, of_old_share, place_at
from headrace.client.loader.travels import check_travels, is_interactive
from headrace.client.loader.worker_plan import WorkerPart, share_of_worker
from headrace.client.loader.worker_share import ShareSource, WorkerSide, results_are_opened
from headrace.client.options.access import Access, was_forked_after_use
from headrace.client.options.arguments import (
    epochs_of,
    token_bytes,
)
from headrace.client.options.mesh import AnyMesh, check_mesh_given
from headrace.client.options.order import Order, order_of
from headrace.client.options.ranks import refuse_alone, resolve_ranks
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.sharding import Sharding, sharding_of
from headrace.client.options.stage import Stage
from headrace.client.options.transport import Transport, transport_of
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.servers.unary import fetch_from_any
from headrace.client.sharing.group import (
    ranks_that_share,
    shared_reading,
    stages_for,
    way_to_share,
)
from headrace.client.state.description import Description
from headrace.client.state.read_spec import Reading
from headrace.client.state.sources import Source
from headrace.client.state.state import (
    State,
    check_end,
    make_state,
    read_state,
    refuse_worker_state,
    saved_in,
)
from headrace.client.wire.assembler import BatchEvent
from headrace.errors import BadArgumentError
from headrace.order import NUMBER_LIMIT, EndMode, EpochPlan, decode_token
from headrace.v1 import shard_service_pb2 as pb

_Result = TypeVar("_Result")


class RemoteDataset(IterableDataset[Result]):
    """Iterate over the batches of one rank, prefetched from a headrace server.

    ``for batch in dataset`` yields the rest of the current epoch. The next ``for`` continues after
    the last batch that the loop got, with the next epoch if that one is complete. If a server is
    lost, the stream reconnects from the token of the last batch received, and the loop gets the
    same batches in the same order. `state_dict` is all that a checkpoint needs, and any number of
    ranks can load it.

    In a DataLoader, each worker reads its share, and the loader yields the same batches in the same
    order. A batch then counts as taken when the loop first looks at it.

    Examples:
        >>> dataset = RemoteDataset(address, "numbers", batch_size=4, end="uneven", epochs=1)
        >>> for batch in dataset:
        ...     print(batch["x"])
        tensor([9, 1, 8, 3])
        tensor([6, 7, 0, 2])
        tensor([4, 5])
        >>> state = dataset.state_dict()
        >>> len(dataset)
        3
        >>> dataset.close()
    """

    _classes: Classes | None = None
    _shared_stages: tuple[Stage, ...] | None = None

    def __init__(
        self,
        target: str | Sequence[str] | None,
        dataset: Source,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | Literal["same"] | None = None,
        end: Literal["drop_last", "uneven", "pad"] = "drop_last",
        columns: Sequence[str] = (),
        stages: Sequence[Stage] = (),
        transform: Callable[[Batch], Result] | None = None,
        device: str | torch.device | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: AnyMesh | None = None,
        access: Access | None = None,
        order: Order | None = None,
        sharding: Sharding | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Describe what to read. No server is contacted or started before the first batch.

        Args:
            target: Address of a server as ``host:port``, ``dns:///name:port`` or ``unix:/path``, or
                several addresses of servers with the same datasets. None for ``HEADRACE_TARGET`` if
                that is set and ``dataset`` is a name; else None starts a private server
                on this machine for all processes of the job, which needs the ``[server]`` extra.
            dataset: Name of the dataset on the server, or its URL for a private server. A
                `Selection` reads some of its samples. For a mixture, pairs of name and proportion,
                or a `Mixture`.
            batch_size: Samples per batch of this rank, >= 1. The global batch has this number
                for each rank with samples of its own. None if ``sharding`` or a state has the size
                of the global batch.
            seed: Seed of the order, >= 0.
            shuffle: False for storage order.
            epochs: Number of epochs; None to continue without end; ``same`` to repeat the same
                epoch with each ``for``, as for validation.
            end: What to do with an incomplete last batch: leave it out (``drop_last``), send it
                (``uneven``), or fill it up with repeats that `Batch.is_pad` marks (``pad``).
            columns: Names of the columns to read; empty for all.
            stages: What the server does with each batch before it sends it, in this order: `Cast`,
                `Pad`, `Stack`, `Slice`, `DecodeImage`, `OneHot`, `MixUp`, `CutMix`, `Transform`.
            transform: Function of a batch; the loop gets its result. It runs in the prefetching
                thread or in the worker. With ``device=`` it runs in the loop's thread and stream,
                when the loop takes the batch.
            device: Where the tensors of a batch are when the loop gets them, ``"cuda"`` or
                ``"cpu"``, through a ring of buffers that is pinned for CUDA. None leaves them in
                the memory that they were received in. Not for DataLoader workers.
            rank: This rank. None for the rank in torch.distributed, then the one in the launcher's
                environment, then 0.
            world_size: Number of ranks. None as for ``rank``, and finally 1.
            mesh: The axes of the ranks, if some share samples or sequences: torch's ``DeviceMesh``,
                sizes such as ``{"dp": 4, "cp": 2, "tp": 2}``, or a `Mesh`; None if each rank has
                samples of its own.
            access: TLS and a bearer token; None for plain text without a token.
            order: How far samples are shuffled, in how many lanes, and which are batched together;
                None for `Order()`.
            sharding: How global batches are divided among ranks; None for `Sharding()`.
            transport: How batches travel, how much memory they may use, how long to wait, and what
                to do while no server answers; None for `Transport()`.

        Raises:
            BadArgumentError: An argument is out of range, or only one of rank and world size is
                known.
            ConfigurationError: There is no folder for the sockets of a private server.
        """
        super().__init__()
        self._transport = transport_of(transport)
        self._is_told = rank is not None or mesh is not None
        rank, world_size = resolve_ranks(rank, world_size)
        self._restart, end_epoch = epochs_of(epochs)
        # A state is loaded into what the user described, not into what an earlier one made of it.
        described = Description(
            target=target,
            dataset=dataset,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            end=end,
            end_epoch=end_epoch,
            columns=columns,
            stages=stages,
            rank=rank,
            world_size=world_size,
            mesh=mesh,
            access=access,
            order=order_of(order),
            sharding=sharding,
            transport=self._transport,
        )
        self._given, self._endpoints = described.settled()
        self._reading = self._given
        # A mesh of torch does not travel to workers, and each reshard has its own.
        self._described, self._has_mesh = replace(described, mesh=None), mesh is not None
        self._on_batches = on_batches_of(transform, self._reading.world_size)
        self._device = None if device is None else checked_device(device)
        self._way, self._why_no_ring = way_to_share(described)
        self._live = self._live_stream()
        self._has_log = False
        self._may_replace = any(stage.may_replace for stage in self._reading.stages)
        self._reporter: Reporter | None = None
        self._loops = EpochLoops(self._live)
        self._progress, self._turns = self._loops.progress, self._loops.turns
        self._new_loops = NewLoops(self._reading.subject.title)
        self._key = uuid.uuid4().hex
        self._side = _registered(self._key, self)
        if self._reading.has_size:
            self._options(self._progress.place)

    def __iter__(self) -> Iterator[Result]:
        """Yield the batches that the current epoch has left.

        Raises:
            HeadraceError: No further batch can be read; the next ``for`` tries again from there.
        """
        if _has_framework():
            refuse_prepared()
        if not self._is_told and self._reading.world_size == 1 and _has_ranks():
            refuse_alone()
        share = share_of_worker()
        # Workers agree on the place now, before any of them hands a batch over.
        if share is None:
            return self._rest_of_epoch()
        return cast("Iterator[Result]", self._share_of_epoch(share))

    def _rest_of_epoch(self) -> Iterator[Result]:
        if self._restart:
            self.seek(self._progress.first_epoch)
        self.leave_epoch()
        note = None if self._reporter is None else self._note_in_log
        rest = self._loops.rest_of_epoch(self._make_reader, self._result_of, note)
        yield from self.announced(rest)

    def announced(self, results: Iterator[_Result]) -> Iterator[_Result]:
        """Return what a loop gets; a loader with workers calls this for its loop.

        Frameworks that gather a padded batch over ranks learn which of its rows to drop.
        """
        if self._reading.end is not EndMode.PAD or not _has_framework():
            return results
        base = self._progress.place.position

        def remainder() -> int | None:
            if self._progress.place.position:
                return None
            plan = self._plan(base)
            return (plan.sample_count - base) % plan.global_batch_size

        return known_to_accelerate(results, remainder)

    def leave_epoch(self) -> None:
        """Move to the next epoch if a framework begins one; a loader calls this for its workers."""
        progress = self._progress
        if self._restart or not (progress.is_left or _has_framework()):
            return
        if self._new_loops.leave_epoch(progress, self):
            self.seek(progress.place.epoch + 1)

    def _result_of(self, event: BatchEvent) -> Any:
        """Return the batch as the loop gets it, or what the function makes of it."""
        result: object
        if self._on_batches is None:
            result = Batch.received(event, group_count=self._reading.world_size)
        elif isinstance(event, TransformedEvent):
            result = event.result
        else:
            # On a device: what the function starts there must be on the loop's stream.
            result = called(self._on_batches, event)
        if self._may_replace:
            self._live.note_damaged(len(event.header.damaged_sample_ids))
        return result

    def _note_in_log(self) -> None:
        assert self._reporter is not None
        self._reporter.note(self._progress.unread, self.stats)

    def _share_of_epoch(self, share: WorkerPart) -> Iterator[Batch | WorkerResult]:
        self._refuse_in_worker()
        end_with_main_process()
        source = ShareSource(
            next_event=self._next_of_share,
            close=self.close,
            batch_count=lambda position: self._plan(position).batch_count,
            group_count=self._reading.world_size,
            restart=self._restart,
        )
        return self._side.iterate(share, self._progress.start(), source)

    def _refuse_in_worker(self) -> None:
        if self._device is not None:
            raise BadArgumentError(
                f"device={str(self._device)!r} inside a DataLoader worker, whose batches are "
                "sent between processes; expected device=None there, or no workers",
                field="device",
            )
        if sharding_of(self._described.sharding).share == "broadcast":
            raise BadArgumentError(
                "share='broadcast' inside a DataLoader worker, which takes no part in it; expected "
                "share='auto' or 'ring', or no workers",
                field="sharding",
            )
        if was_forked_after_use():
            raise BadArgumentError(
                "a worker was forked from a process that had already called a headrace server, and "
                "gRPC may hang in it; expected DataLoader(..., "
                "multiprocessing_context='forkserver') or 'spawn', or headrace.client.BatchLoader",
                field="multiprocessing_context",
            )
        if self._on_batches is not None and not results_are_opened():
            raise BadArgumentError(
                "transform= in DataLoader workers, where the dataset cannot know which of its "
                "results the loop received; expected headrace.client.BatchLoader, or no workers",
                field="transform",
            )
        if self._has_log:
            raise BadArgumentError(
                "log_stats() was called, and DataLoader workers each have statistics of their own; "
                "expected no log, or no workers",
                field="log",
            )

    def _next_of_share(self, place: Place, share: WorkerPart) -> Event | None:
        def make(landing: Landing) -> BatchReader:
            if place.token is not None and not self._given.has_size:
                # A kept worker learns from the token alone that another state was loaded.
                size = decode_token(place.token).global_batch_size
                self._reading = replace(self._reading, global_batch_size=size)
            return self._make_reader(landing, place=place, share=share)

        return self._live.next_event(make)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            f"a RemoteDataset has no item {index!r}: iterate it, `for batch in dataset`; `headrace "
            "cat URL --ids ID` shows single samples"
        )

    def __len__(self) -> int:
        """Count the batches of a whole epoch; asks the server once.

        Raises:
            HeadraceError: No server answers, or it has no such dataset.
        """
        return self._plan(0).batch_count

    @property
    def batches_left(self) -> int:
        """Number of batches that the next ``for`` yields, if run to its end; asks the server once.

        Raises:
            HeadraceError: No server answers, or it has no such dataset.
        """
        if self._restart:
            return len(self)
        place, end = self._progress.place, self._reading.end_epoch
        if end is not None and place.epoch >= end:
            return 0
        return self._plan(place.position).batch_count

    @property
    def transform(self) -> Callable[[Batch], Any] | None:
        """The function that is applied to each batch before the loop gets it, or None."""
        return None if self._on_batches is None else self._on_batches.function

    @property
    def classes(self) -> Classes:
        """Names of the classes of label columns: ``dataset.classes["label"][i]`` is the name of i.

        The names belong to the version that is read. The server is asked at the first access, and
        after a state of another version was loaded. -1 in a column means no class; do not look it
        up in the names.

        Raises:
            HeadraceError: No server answers, or it has no such dataset.
        """
        self._describe()
        wanted = self._reading.subject.requests()
        known = [(request.name, request.fingerprint) for request in wanted]
        if self._classes is None or self._classes.versions != known:
            self._classes = Classes(self._ask(wanted))
        return self._classes

    def log_stats(self, log: StatsLog | Log) -> Self:
        """Log the numbers of `stats` regularly; return the dataset.

        Args:
            log: ``"mlflow"``, ``"wandb"``, ``"tensorboard"``, ``"opentelemetry"``, or a function of
                a dictionary, every 30 s; or a `StatsLog`. Not for DataLoader workers.

        Raises:
            BadArgumentError: It is none of these.
            ConfigurationError: What draws the run is not installed.
        """
        options = log if isinstance(log, StatsLog) else StatsLog(log)
        self._reporter = Reporter(options, rank=self._reading.rank)
        self._has_log = True
        return self

    def resume(self, token: bytes | None) -> Self:
        """Continue after a batch with the next ``for``; return the dataset.

        Args:
            token: `Batch.token` of a run, with any rank and world size; None to stay.

        Raises:
            TokenMalformedError: ``token`` is damaged.
            TokenSpecChangedError: ``token`` belongs to another order.
        """
        if token is not None:
            self._adopt(token_bytes(token), {})
            self._options(self._progress.place)
        return self

    def seek(self, epoch: int, position: int = 0) -> None:
        """Move to a place in the order; the next ``for`` starts there.

        Args:
            epoch: The epoch, >= 0.
            position: Number of its samples to skip, over all ranks, >= 0.

        Raises:
            BadArgumentError: One of the two is negative, or not a whole number.
        """
        epoch = whole("epoch", epoch, low=0, high=NUMBER_LIMIT)
        position = whole("position", position, low=0, high=NUMBER_LIMIT)
        self._turns.take()
        try:
            self.close()
            self._progress.first_epoch = epoch
            self._move(self._progress.place.moved(epoch, position))
        finally:
            self._turns.end()

    def reshard(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: AnyMesh | None = None,
        at_step: int | None = None,
    ) -> None:
        """Read the share of another rank from a step on: when ranks have left or joined.

        All ranks call this between two steps, with what they have agreed on. The global batches
        stay the same, and so does their size; shares differ by at most one sample. A loop goes on
        with the batch of ``at_step``. What was prefetched for the old share is dropped and read
        again, over the same connection. If nothing changes, nothing is dropped.

        Args:
            rank: This rank from now on, in ``[0, world_size)``; None, as ``world_size``, to stay;
                or, with ``mesh``, for that of torch.distributed or the launcher.
            world_size: Number of ranks from now on.
            mesh: The axes of the ranks from now on; needed if the dataset has a mesh.
            at_step: The step (`Batch.step`) whose batch comes next. Later steps that the loop got
                come again, and earlier ones that it did not get do not come. None for the first
                step that is not `committed` or, in a loop that commits none, for the one after its
                last batch.

        Raises:
            BadArgumentError: An argument is out of range, or ``at_step`` lies before the step that
                the dataset was made for or moved to. Nothing has changed then.
            HeadraceError: ``at_step`` is not the next step, and no server says how long an epoch
                is.
        """
        self._refuse_worker("reshard")
        stays = rank is None and world_size is None and mesh is None
        share = self._described
        if not stays:
            found, count = resolve_ranks(rank, world_size)
            check_mesh_given(mesh, has_mesh=self._has_mesh)
            share = replace(share, rank=found, world_size=count, mesh=mesh)
        self._turns.take()
        try:
            place = next_place(self._progress, at_step, self._place_of)
            given, reading = self._given, self._reading
            if not stays:
                # A size that only followed from the number of ranks is now that of the state.
                size = given.global_batch_size
                given = replace(share.resharded(given, None), global_batch_size=size)
                reading = share.resharded(reading, place.token)
            options, now = reading.options(place.token), self._reading.options(place.token)
            if place != self._progress.place or options != now or not self._live.may_stay:
                self._take_share(reading, place)
                self._given = given
                self._has_mesh = mesh is not None or (stays and self._has_mesh)
        finally:
            self._turns.end()

    def committed(self, step: int) -> None:
        """Note that the optimizer has taken a step, and with it those before it.

        From the first call on, `state_dict` and `reshard` go on after the last committed step, so
        every sample counts once in the steps that were committed, whatever was begun besides.

        Args:
            step: `Batch.step` of the last batch of the step; -1 before the first step. The last
                committed step may be named again.

        Raises:
            BadArgumentError: The loop has not got that batch, or a later step is committed.
        """
        self._refuse_worker("committed")
        commit(self._progress, step, self._place_of)

    def state_dict(self) -> State:
        """Return the state after the last batch handed to the loop, JSON-serialisable.

        In a loop that calls `committed`, it is the state after the last committed step. It is the
        same on every rank, so one rank's is enough. If no batch was handed over yet, the server is
        asked for the dataset's fingerprint.
        """
        share = share_of_worker()
        place = (share and self._side.place) or self._progress.settled
        token = place.token or self._first_token(place)
        state = make_state(token, subject=self._reading.subject, end=self._reading.end)
        return state if share is None else {**state, "worker": self._side.state(share)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Resume after the batch at which a state was taken, with any rank and world size.

        Raises:
            TokenMalformedError: It is not a state, or a damaged one.
            TokenSpecChangedError: It belongs to other options; the message names them.
        """
        token, share = read_state(state), share_of_worker()
        check_end(state, self._reading.end)
        if share is None:
            refuse_worker_state(state)
        self._adopt(token, saved_in(state))
        if share is not None:
            self._side.load(share, state.get("worker"), self._progress.place)

    def note_look(self, token: bytes, *, moves: int) -> None:
        """Note that the loop got a worker's batch; the batch itself calls this."""
        if moves < self._progress.resharded:
            raise of_old_share("the batch was read", "leave this loop")
        start = LoopStart(Place.after(token), moves, self._progress.first_epoch)
        if moves == self._progress.moves and start.is_after(self._progress.start()):
            # What was prefetched here lies before that place.
            self.close()
            self._progress.place = start.place
            self._side.shared.publish(start)

    def __getstate__(self) -> dict[str, object]:
        """Unpickle in a worker as the same dataset, and anywhere else as a copy."""
        state = dict(self.__dict__)
        # What the ranks of a host need together, a process that reads alone does not.
        state.pop("_shared_stages", None)
        if get_spawning_popen() is None:
            state["_key"] = uuid.uuid4().hex
            state["_side"] = None
        else:
            if _has_framework():
                refuse_prepared()
            if is_interactive():
                check_travels(self.transform)
            # The function that it calls belongs to this process.
            state["_reporter"] = None
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if state["_side"] is None:
            self._side = _registered(self._key, self)

    def __copy__(self) -> Self:
        """Return a dataset with a place of its own, as a deep copy has."""
        return deepcopy(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise_missing(self, name)

    def stats(self) -> ClientStats:
        """Return what has happened in this process since the dataset was made."""
        found = self._live.stats()
        if found.culprit is None:
            return found
        return replace(found, culprit=replace(found.culprit, rank=self._reading.rank))

    def close(self) -> None:
        """Drop the connection and the prefetched batches; the next ``for`` still continues."""
        self._live.close()

    def __repr__(self) -> str:
        reading, place = self._reading, self._progress.place
        size = reading.batch_size or f"{reading.global_batch_size} over all ranks"
        columns = ", ".join(map(stored, self._live.columns))
        after = "" if self.transform is None else f"; transform={shown(self.transform)}"
        return (
            f"RemoteDataset({reading.subject.title!r}, batch_size={size}, rank {reading.rank} of "
            f"{reading.world_size}, epoch={place.epoch}, position={place.position}; "
            f"{columns or 'columns are known after the first batch'}{after})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _live_stream(self) -> LiveStream:
        if self._way == "broadcast":
            return self._shared_stream()
        if self._device is None:
            return LiveStream(self._transport, self._on_batches)
        idle_bytes = self._transport.prefetch_bytes
        return LiveStream(
            self._transport, make_mover=partial(ring_to, self._device, idle_bytes=idle_bytes)
        )

    def _shared_stream(self) -> LiveStream:
        if self._device is not None:
            raise BadArgumentError(
                f"device={str(self._device)!r} and ranks that share by a broadcast "
                f"({self._why_no_ring or 'share=broadcast'}), whose batches arrive in the loop; "
                "expected one of them, and Batch.to() for the other",
                field="device",
            )

        return SharedStream(
            self._transport,
            self._on_batches,
            sharing=self._sharing,
            place=lambda: self._progress.place,
        )

    def _sharing(self) -> Sharing:
        def read_for(numbers: Sequence[int]) -> frozenset[str]:
            self._shared_stages, left_out = stages_for(self._reading, numbers)
            return left_out

        ranks = ranks_that_share(self._reading)
        stages, _ = stages_for(self._reading, ranks)
        reads = self._reading.said(stages, self._progress.place.token)
        return Sharing(ranks, reads, read_for, self._why_no_ring)

    def _move(self, place: Place) -> None:
        if share_of_worker() is not None:
            self._progress.place = place
            return
        self._progress.move(place)
        self._side.shared.publish(self._progress.start())

    def _plan(self, position: int) -> EpochPlan:
        self._reading.known_global_batch_size()
        self._describe()
        return self._reading.plan(position, self._progress.place.token)

    def _make_reader(
        self, landing: Landing, *, place: Place | None = None, share: WorkerPart | None = None
    ) -> BatchReader:
        if not self._reading.subject.name:
            # Tokens of mixtures hold no versions, so each request names them.
            self._describe()
        place = place or self._progress.place
        options, group = self._options(place), None
        if self._way == "ring":
            reading, group = shared_reading(self._reading, self._described)
            options = reading.options(place.token)
        if self._restart:
            # A worker's own progress is that of the time when it started.
            epoch = self._progress.first_epoch if share is None else place.epoch
            options = replace(options, end_epoch=epoch + 1)
        if share is not None:
            options = replace(options, batch_stride=share.count, batch_offset=share.index)
        return open_reader(self._endpoints, options, place, self._transport, landing, group=group)

    def _options(self, place: Place) -> ReadOptions:
        reading, shared = self._reading, self._shared_stages
        return (reading if shared is None else replace(reading, stages=shared)).options(place.token)

    def _adopt(self, token: bytes, saved: Mapping[str, object]) -> None:
        content = decode_token(token)
        reading = self._given.adopted(content, saved)
        self._turns.take()
        try:
            self.close()
            self._reading = reading
            self._progress.first_epoch = content.epoch
            self._move(Place(content.epoch, content.position, token))
        finally:
            self._turns.end()

    def _take_share(self, reading: Reading, place: Place) -> None:
        self._live.reopen()
        self._reading = reading
        self._is_told = True
        if self._reporter is not None:
            self._reporter.rank = reading.rank
        if self._on_batches is not None:
            self._on_batches = replace(self._on_batches, group_count=reading.world_size)
            if self._device is None:
                self._live.transform_by(self._on_batches)
        self._progress.reshard(place)
        self._side.shared.publish(self._progress.start())

    def _place_of(self, step: int) -> Place:
        start, seen = self._progress.moved_to, self._progress.place.token
        self._describe()
        if seen is not None and not self._reading.is_in_version_of(content := decode_token(seen)):
            # A newer version was described than the one that is read.
            reading = self._reading
            self._reading = replace(reading, subject=reading.subject.at(content, {}))
            self._describe()
        return place_at(
            step,
            start=start,
            plan_from=lambda position: self._reading.plan(position, start.token),
            first_token=seen or self._first_token(start),
        )

    def _refuse_worker(self, method: str) -> None:
        if share_of_worker() is not None:
            raise BadArgumentError(
                f"{method}() was called in a DataLoader worker, which does not know how far the "
                "loop is; expected the call in the main process",
                field="dataset",
            )

    def _first_token(self, place: Place) -> bytes:
        self._reading.known_global_batch_size()
        self._describe()
        return self._reading.first_token(epoch=place.epoch, position=place.position)

    def _describe(self) -> None:
        def fetch(wanted: Sequence[pb.GetDatasetRequest]) -> list[pb.Dataset]:
            return [answer.dataset for answer in self._ask(wanted)]

        self._reading = replace(self._reading, subject=self._reading.subject.described(fetch))

    def _ask(self, wanted: Sequence[pb.GetDatasetRequest]) -> list[pb.GetDatasetResponse]:
        return fetch_from_any(self._endpoints, wanted, deadlines=self._transport.deadlines)


def _registered(key: str, owner: RemoteDataset[Any]) -> WorkerSide:
    register_owner(key, owner)
    return WorkerSide(key)


def _has_ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


def _has_framework() -> bool:
    return not FRAMEWORKS.isdisjoint(sys.modules)
