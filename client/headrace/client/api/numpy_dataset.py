"""Batches as NumPy arrays, for loops without torch."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.arguments import flag, whole
from headrace.client.api.missing_methods import raise_missing
from headrace.client.batch.classes import Classes
from headrace.client.batch.transformed import (
    TransformedEvent,
    TransformingReader,
    transform_of,
)
from headrace.client.feeds.feed import Event
from headrace.client.feeds.open_feed import RingFeeds
from headrace.client.feeds.transport import Landing, TransportState
from headrace.client.loader.loop_turns import Loop, overtaken
from headrace.client.options.access import Access, access_of
from headrace.client.options.addresses import addresses_of
from headrace.client.options.arguments import (
    column_names,
    dataset_name,
    end_mode,
    epoch_limit,
    token_bytes,
)
from headrace.client.options.buckets import buckets_of
from headrace.client.options.deal import Deal, deal_of
from headrace.client.options.order import Order, order_of
from headrace.client.options.private import PrivateServer, private_of
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.settings import (
    Deadlines,
    deadlines_of,
)
from headrace.client.options.steps import Step, steps_of
from headrace.client.options.transport import Transport, transport_of
from headrace.client.options.where import where_of
from headrace.client.reader.prefetch import Prefetcher, Reader
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.servers.endpoints import PrivateEndpoints, fixed_endpoints
from headrace.client.servers.private_server import name_of_source, private_server
from headrace.client.servers.replicas import seat_of
from headrace.client.servers.unary import fetch_from_any
from headrace.client.state.token_places import place_after
from headrace.client.wire.assembler import BatchEvent
from headrace.client.wire.buffers import BufferPool
from headrace.client.wire.payload_layout import ColumnView
from headrace.errors import BadArgumentError
from headrace.order import decode_token
from headrace.payload import BFLOAT16, SAMPLE_ID_COLUMN
from headrace.v1 import shard_service_pb2 as pb

Arrays = dict[str, NDArray[Any]]
_T = TypeVar("_T")

_COUNT_LIMIT = 1 << 31


class NumpyDataset:
    """Iterate over the batches of one rank as dictionaries of NumPy arrays.

    ``for arrays in dataset`` yields the rest of the current epoch; the next ``for`` continues after
    the last batch handed over. Columns of numbers are ``(samples, *shape)``; strings, bytes and
    ragged columns are object arrays of `str`, `bytes` and arrays, with `None` for null. A column of
    numbers that may hold nulls has a second entry ``name.valid``. The loop owns the memory of a
    batch for as long as it keeps one of its arrays. Between two epochs the stream stays open and
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
        dataset: str,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        columns: Sequence[str] = (),
        rank: int = 0,
        world_size: int = 1,
        epochs: int | None = None,
        end: Literal["drop_last", "uneven", "pad"] = "drop_last",
        where: str | None = None,
        steps: Sequence[Step] = (),
        allow_decoder_change: bool = False,
        deal: Literal["balanced"] | Deal | None = None,
        buckets: int | None = None,
        transform: Callable[[Arrays], Any] | None = None,
        token: bytes | None = None,
        order: Order | None = None,
        access: Access | None = None,
        transport: Transport | None = None,
        deadlines: Deadlines | None = None,
        private: PrivateServer | None = None,
    ) -> None:
        """Describe what to read; no server is asked, or started, before the first batch.

        Args:
            target: Address of a server, or several; None for a private one on this machine.
            dataset: The dataset's name on the server; its URL for a private server.
            batch_size: Samples a batch of this rank, >= 1.
            seed: Seed of the order, >= 0.
            shuffle: False for storage order.
            columns: Names of the columns to read; empty for all.
            rank: This rank, in ``[0, world_size)``.
            world_size: Number of ranks.
            epochs: Epochs of the run; None to continue without end.
            end: What happens to an incomplete last batch, as for `RemoteDataset`.
            where: An expression that says which samples to read, as for `RemoteDataset`.
            steps: What the server does with each batch, as for `RemoteDataset`.
            allow_decoder_change: Whether ``token`` may be of images that other versions of the
                server's image libraries decoded, as for `RemoteDataset`.
            deal: How samples are dealt to ranks, as for `RemoteDataset`.
            buckets: How many batches to sort by length together, as for `RemoteDataset`.
            transform: Called with each batch's arrays, in the thread that reads ahead; what it
                returns is what the loop gets.
            token: Where to begin: `token` of another dataset, or `Batch.token`.
            order: How far samples are shuffled; None for `Order()`.
            access: TLS and a bearer token; None for plain text without one.
            transport: How batches come, and how much memory they may take; None for
                `Transport()`.
            deadlines: How long to wait; None for `Deadlines()`.
            private: What a private server is started with; None for `PrivateServer()`.

        Raises:
            BadArgumentError: An argument is out of range.
            ConfigurationError: There is no folder in which a private server could be met.
            TokenMalformedError: ``token`` is damaged.
        """
        batch_size = whole("batch_size", batch_size, low=1, high=_COUNT_LIMIT)
        world_size = whole("world_size", world_size, low=1, high=_COUNT_LIMIT)
        rank = whole("rank", rank, low=0, high=world_size)
        self._wanted_transport = transport_of(transport)
        addresses, own = addresses_of(target, dataset=dataset), private_of(private)
        dataset = dataset_name(dataset, is_private=addresses is None)
        name = name_of_source(dataset) if addresses is None else dataset
        self._options = ReadOptions(
            dataset=name,
            order=order_of(order).spec(seed=seed, shuffle=shuffle, unit=batch_size * world_size),
            global_batch_size=batch_size * world_size,
            rank=rank,
            world_size=world_size,
            end=end_mode(end),
            columns=column_names(columns),
            end_epoch=epoch_limit(epochs),
            steps=steps_of(steps),
            allow_decoder_change=flag("allow_decoder_change", allow_decoder_change),
            deal=deal_of(deal),
            where=where_of(where),
            buckets=buckets_of(buckets),
        )
        self._endpoints = (
            PrivateEndpoints(
                private_server(
                    {name: dataset},
                    cache_bytes=own.cache_bytes,
                    store=own.store,
                    tokenizers=own.tokenizers,
                )
            )
            if addresses is None
            else fixed_endpoints(
                addresses,
                access_of(access),
                seat=seat_of(rank=rank, world_size=world_size, seed=self._options.order.seed),
            )
        )
        self._deadlines = deadlines_of(deadlines)
        self._transform = transform_of(transform)
        self._transport = TransportState()
        self._loop: Loop | None = None
        self._running: Prefetcher | None = None
        # The stream that ended the last epoch, and the process that it belongs to.
        self._kept: tuple[int, Prefetcher] | None = None
        self._finalizer: weakref.finalize[[], NumpyDataset] | None = None
        self._classes: Classes | None = None
        begin = token_bytes(token)
        self._place = Place() if begin is None else place_after(begin)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise_missing(self, name)

    @property
    def token(self) -> bytes | None:
        """The resume token after the last batch handed over; None before the first."""
        return self._place.token

    @property
    def transform(self) -> Callable[[Arrays], Any] | None:
        """The function that is applied to each batch before the loop gets it, or None."""
        return self._transform

    @property
    def transport(self) -> str:
        """How batches arrive: ``ring`` or ``grpc``; empty before the first stream."""
        return self._transport.name

    @property
    def transport_reason(self) -> str:
        """Why there is no ring, or why it is smaller than requested; otherwise empty."""
        return self._transport.reason

    @property
    def classes(self) -> Classes:
        """Names of the classes of label columns: ``dataset.classes["label"][i]`` is the name of i.

        The names belong to the version that is read; before the first batch, to the one that the
        server has now. The server is asked at the first access, and when the version has changed.
        -1 in a column means no class; do not look it up in the names.

        Raises:
            HeadraceError: No server answers, or it has no such dataset.
        """
        token = self._place.token
        version = "" if token is None else decode_token(token).fingerprint
        name = self._options.dataset
        known = self._classes
        if known is None or (version and known.versions != [(name, version)]):
            wanted = pb.GetDatasetRequest(name=name, fingerprint=version)
            answers = fetch_from_any(self._endpoints, [wanted], deadlines=self._deadlines)
            known = self._classes = Classes(answers)
        return known

    def __iter__(self) -> Iterator[Arrays]:
        """Yield the batches that the current epoch has left.

        Raises:
            HeadraceError: No further batch can be read; the next ``for`` tries again from there.
        """
        if self._transform is not None:
            return self._rest_of_epoch(_result_of)
        return (arrays_of(columns) for columns in self.views())

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
        if self._is_over:
            return
        loop = self._loop = Loop(self._place.epoch, 0)
        prefetcher = self._stream()
        is_kept = False
        try:
            while (event := prefetcher.get()) is not None:
                found = [value_of(event)] if isinstance(event, BatchEvent) else []
                place = place_after(_token_of(event))
                # From here to the `yield` nothing is called, so that nothing comes between, neither
                # another loop nor Ctrl-C.
                if self._loop is not loop:
                    raise overtaken()
                self._place = place
                if not found:
                    is_kept = self._keep(prefetcher)
                    return
                yield found.pop()
        finally:
            if not is_kept:
                self._end(prefetcher)

    @property
    def _is_over(self) -> bool:
        end = self._options.end_epoch
        return end is not None and self._place.epoch >= end

    def _stream(self) -> Prefetcher:
        """Return the stream that ended the last epoch, or a new one."""
        kept, self._kept = self._kept, None
        # A process that was forked has no thread that reads.
        if kept is not None and kept[0] == os.getpid():
            return kept[1]
        transport = self._transport = TransportState()
        prefetcher = self._running = self._prefetcher(transport)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, prefetcher.close)
        return prefetcher

    def _keep(self, prefetcher: Prefetcher) -> bool:
        """Keep a stream for the next epoch, if there is one; return whether it is kept."""
        if self._is_over or self._running is not prefetcher:
            return False
        self._kept = os.getpid(), prefetcher
        return True

    def _end(self, prefetcher: Prefetcher) -> None:
        if self._running is prefetcher and self._finalizer is not None:
            self._finalizer.detach()
        prefetcher.close()

    def _prefetcher(self, transport: TransportState) -> Prefetcher:
        reader: Reader = self._open(self._wanted_transport, transport)
        transform = self._transform
        if transform is not None:
            reader = TransformingReader(reader, lambda event: transform(arrays_of(event.columns)))
        return Prefetcher(
            reader,
            budget_bytes=self._wanted_transport.prefetch_bytes,
            limit=transport.ready_bytes,
            is_ahead=transport.has_ring if transform is None else None,
            loop_may_lead=transform is None,
        )

    def close(self) -> None:
        """Drop the connection and the prefetched batches; the next ``for`` still continues."""
        running, self._running, self._kept = self._running, None, None
        if running is not None:
            if self._finalizer is not None:
                self._finalizer.detach()
            running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def peek(self) -> dict[str, ColumnView]:
        """Return the columns of the next batch, which stays the next; empty after the last."""
        # One batch is not worth a ring.
        reader = self._open(Transport("grpc"), TransportState())
        try:
            event = next(reader.events(), None)
        finally:
            reader.close()
        return event.columns if isinstance(event, BatchEvent) else {}

    def _open(self, wanted: Transport, transport: TransportState) -> BatchReader:
        landing = Landing(
            BufferPool(idle_bytes=self._wanted_transport.prefetch_bytes).take,
            None,
            transport,
            max_batch_bytes=wanted.max_batch_bytes,
        )
        return BatchReader(
            self._endpoints,
            self._options,
            place=self._place,
            deadlines=self._deadlines,
            allocate=landing.allocate,
            open_feed=RingFeeds(wanted, landing, silence_s=self._deadlines.silence_s),
        )


def _columns_of(event: BatchEvent) -> dict[str, ColumnView]:
    return event.columns


def _result_of(event: BatchEvent) -> Any:
    assert isinstance(event, TransformedEvent)
    return event.result


def _token_of(event: Event) -> bytes:
    return event.header.resume_token if isinstance(event, BatchEvent) else event.resume_token


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
