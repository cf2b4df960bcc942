"""Serve the requests of one worker in its supervisor.

Contract:

1. Requests of a worker are handled in order, except for opening datasets, each of which runs
   concurrently.
2. When the worker ends, for any reason, all that it held is released: pins, demands, datasets.
   Nothing waits for it.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError, InternalError, RebalanceError
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.memory.shared_memory import Shared, WorkerTable
from headrace.server.cache.pieces import Pieces
from headrace.server.cache.readers import Waiter
from headrace.server.cache.source import Source
from headrace.server.workers.messages import (
    Arrived,
    CloseSource,
    CloseWindow,
    Demand,
    EndDemand,
    Failed,
    JobNamed,
    NeedOpened,
    NeedOver,
    Opened,
    OpenSource,
    OpenWindow,
    Prefetch,
    Release,
    StreamClosed,
    StreamOpened,
    ToSupervisor,
    ToWorker,
)
from headrace.server.workers.shared_needs import SharedNeeds
from headrace.server.workers.shared_sources import SharedSource, SharedSources
from headrace.server.workers.shared_windows import SharedWindow, SharedWindows

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class _RemoteWaiter(Waiter):
    """A stream of a worker, which is told about the blocks that it waits for.

    Attributes:
        demanded: The blocks that it waits for now.
        serial: The number of that demand.
    """

    __slots__ = ("_number", "_post", "demanded", "serial")

    def __init__(self, lock: threading.Lock, number: int, post: Callable[[ToWorker], None]) -> None:
        super().__init__(lock)
        self._number = number
        self._post = post
        self.serial = 0
        self.demanded: tuple[Source, NDArray[np.int64]] | None = None

    def deliver(self, block: int) -> None:
        self.arrived.append(block)
        self._post(Arrived(self._number, self.serial, block))

    def fail(self, error: HeadraceError) -> None:
        self._post(Failed(self._number, self.serial, error))


class Session:
    """Handle the requests of one worker.

    Args:
        connection: A connection to the worker.
        cache: The supervisor's cache.
        sources: The datasets that workers have open.
        windows: The windows that workers have open.
        needs: What the streams of workers need of the cache.
        worker_table: The worker's table.
        on_message: Receives messages that do not concern the cache.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        cache: BlockCache,
        sources: SharedSources,
        windows: SharedWindows,
        needs: SharedNeeds,
        worker_table: WorkerTable,
        on_message: Callable[[ToSupervisor], None],
    ) -> None:
        self._connection = connection
        self._cache = cache
        self._sources = sources
        self._windows = windows
        self._needs = needs
        self._worker_table = worker_table
        self._on_message = on_message
        self._lock = threading.Lock()
        self._streams: dict[int, _RemoteWaiter] = {}
        self._open: dict[int, SharedSource] = {}
        self._open_windows: dict[int, SharedWindow] = {}
        self._pieces: dict[int, Source] = {}
        self._is_over = False
        # The queue is bounded by what the worker's streams have demanded.
        self._outbox: queue.SimpleQueue[tuple[ToWorker, tuple[Shared, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._sender = threading.Thread(
            target=self._send_all, name="headrace-worker-send", daemon=True
        )
        self._sender.start()
        # Last, because only `serve` takes it away again.
        cache.add_worker(worker_table)

    def post(self, message: ToWorker, *handles: Shared) -> None:
        """Queue a message to the worker, with memory for it to map."""
        self._outbox.put((message, handles))

    def serve(self) -> None:
        """Handle the worker's requests until it ends."""
        number = self._needs.join(self.post)
        try:
            while True:
                self._take(number, self._connection.recv())
        except (EOFError, OSError):
            pass
        finally:
            self._needs.leave(number)
            self._end()

    def _take(self, number: int, message: ToSupervisor) -> None:
        match message:
            case OpenSource():
                threading.Thread(
                    target=self._open_source,
                    args=(message,),
                    name="headrace-worker-open",
                    daemon=True,
                ).start()
            case CloseSource(index):
                self._close_source(index)
            case OpenWindow() | CloseWindow():
                self._open_or_close_window(message)
            case NeedOpened() | NeedOver():
                need = message.need if isinstance(message, NeedOpened) else None
                self._needs.change(number, message.number, need)
            case StreamOpened(stream, job):
                self._join(stream, job)
            case StreamClosed(stream):
                self._close_stream(stream)
            case Prefetch() | Release():
                self._prefetch_or_release(message)
            case Demand():
                self._demand(message)
            case EndDemand(stream):
                self._end_demand(self._streams.get(stream))
            case _:
                self._on_message(message)

    def _close_source(self, index: int) -> None:
        with self._lock:
            shared = self._open.pop(index, None)
        if shared is not None:
            self._sources.give_back(shared)

    def _join(self, stream: int, job: str) -> None:
        waiter = _RemoteWaiter(self._lock, stream, self.post)
        self._cache.readers.join(waiter, job)
        self._streams[stream] = waiter
        self.post(JobNamed(stream, waiter.job))

    def _close_stream(self, stream: int) -> None:
        if (waiter := self._streams.pop(stream, None)) is not None:
            self._leave(waiter)

    def _prefetch_or_release(self, message: Prefetch | Release) -> None:
        source, waiter = self._source(message.index), self._streams.get(message.stream)
        # A stream that ended while the message was in transit needs nothing.
        if source is None or waiter is None:
            return
        if isinstance(message, Prefetch):
            self._cache.prefetch(source, message.blocks, waiter)
        else:
            self._cache.release(source, message.blocks, waiter)

    def _demand(self, message: Demand) -> None:
        waiter = self._streams.get(message.stream)
        if waiter is None:
            return
        source = self._source(message.index)
        waiter.serial = message.serial
        if source is None:
            waiter.fail(_not_served_error())
            return
        waiter.demanded = (source, message.blocks)
        try:
            self._cache.begin_demand(source, message.blocks, waiter)
        except HeadraceError as error:
            waiter.demanded = None
            waiter.fail(error)

    def _source(self, index: int) -> Source | None:
        """Return a dataset or pieces; None if the worker has closed it in the meantime."""
        with self._lock:
            shared = self._open.get(index)
        return self._pieces.get(index) if shared is None else shared.source

    def _end_demand(self, waiter: _RemoteWaiter | None) -> None:
        if waiter is not None and waiter.demanded is not None:
            self._cache.end_demand(*waiter.demanded, waiter)
            waiter.demanded = None

    def _leave(self, waiter: _RemoteWaiter) -> None:
        self._end_demand(waiter)
        self._cache.readers.leave(waiter)

    def _open_source(self, message: OpenSource) -> None:
        take = partial(self._sources.take, message.name, message.config, message.fingerprint)
        shared = self._opened(message.request, take)
        if shared is None:
            return
        with self._lock:
            is_over = self._is_over
            if not is_over:
                self._open[shared.source.index] = shared
        if is_over:
            self._sources.give_back(shared)
            return
        self.post(
            Opened(message.request, (shared.source.index,), shared.tables.size),
            shared.tables,
        )

    def _opened(self, request: int, take: Callable[[], _Result]) -> _Result | None:
        """Return what the worker asked for; None if it was told an error instead."""
        found: HeadraceError
        try:
            return take()
        except HeadraceError as error:
            found = error
        except Exception:  # noqa: BLE001 - a bug must reach the worker that waits, as a value
            _log.exception("what a worker reads could not be opened")
            found = InternalError("the server failed; its log says how")
        self.post(Opened(request, error=found))
        return None

    def _open_or_close_window(self, message: OpenWindow | CloseWindow) -> None:
        if isinstance(message, CloseWindow):
            self._windows.give_back(self._open_windows.pop(message.request))
        else:
            members = message.members
            window = self._opened(message.request, lambda: self._windows.take(self._known(members)))
            if window is None:
                return
            self._open_windows[message.request] = window
            indices = tuple(source.index for source in window.sources)
            self.post(Opened(message.request, indices, window.memory.size), window.memory)
        windows = self._open_windows.values()
        self._pieces = {each.index: each for window in windows for each in window.sources}

    def _known(self, asked: Sequence[tuple[int, Pieces]]) -> list[tuple[Source, Pieces]]:
        members = [(self._source(index), pieces) for index, pieces in asked]
        known = [(whole, pieces) for whole, pieces in members if whole is not None]
        if len(known) < len(members):
            raise _not_served_error()
        return known

    def _send_all(self) -> None:
        while (item := self._outbox.get()) is not None:
            message, handles = item
            # The listening thread notices a worker that has ended.
            with contextlib.suppress(OSError):
                self._connection.send(message)
                for handle in handles:
                    send_handle(self._connection, handle.fd, None)

    def _end(self) -> None:
        for waiter in self._streams.values():
            self._leave(waiter)
        self._cache.remove_worker(self._worker_table)
        with self._lock:
            self._is_over = True
            held, self._open = list(self._open.values()), {}
        for window in self._open_windows.values():
            self._windows.give_back(window)
        for shared in held:
            self._sources.give_back(shared)
        self._outbox.put(None)
        self._sender.join()
        self._connection.close()


def _not_served_error() -> RebalanceError:
    return RebalanceError("the dataset is no longer served here; reconnect to continue")
