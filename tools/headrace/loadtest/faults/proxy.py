"""A TCP proxy that simulates a bad network.

Contract:

1. Without a cut, every byte passes in order, in both directions.
2. Per connection and direction, ``latency`` delays every byte and ``bandwidth`` limits the rate.
   ``blackhole`` lets nothing pass but closes nothing. ``reset`` aborts every connection once.
3. `close` ends every connection and the thread. A proxy that cannot listen leaves no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from headrace.errors import ConfigurationError

_CHUNK = 64 << 10
_WAIT_S = 10.0
_MAX_CHUNKS = 64  # in transit per connection and direction

CutKind = Literal["latency", "bandwidth", "blackhole", "reset"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A disturbance of the network.

    Attributes:
        kind: The kind of disturbance.
        value: Seconds of ``latency``, or bytes per second of ``bandwidth``; unused otherwise.
        seconds: How long it lasts; 0 for the whole run.
    """

    kind: CutKind
    value: float = 0.0
    seconds: float = 0.0


class FaultyProxy:
    """Owns a listening socket on the loopback and the thread that serves it."""

    def __init__(self, target: str) -> None:
        """Start to listen.

        Args:
            target: ``host:port`` to connect to.

        Raises:
            ConfigurationError: ``target`` is not ``host:port``.
            OSError: No socket can be opened to listen on.
        """
        host, colon, port = target.rpartition(":")
        if not colon or not port.isdigit() or ":" in host.strip("[]"):
            raise ConfigurationError(
                f"the built-in proxy cannot stand before {target!r}; expected HOST:PORT, without a "
                "scheme, a unix socket or an IPv6 address"
            )
        self._target = (host, int(port))
        self._cut: Cut | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        # asyncio does not report that it cannot open a socket.
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._loop = asyncio.new_event_loop()
            undo.callback(self._loop.close)
            self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-proxy")
            self._thread.start()
            undo.callback(self._stop)
            self._server = self._call(asyncio.start_server(self._serve, sock=listener))
            undo.pop_all()
        self.address = "{}:{}".format(*listener.getsockname()[:2])

    def __enter__(self) -> Self:
        """Return the running proxy."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def apply(self, cut: Cut | None) -> None:
        """Replace the current cut; None restores the network."""
        self._call(self._apply(cut))

    def close(self) -> None:
        """Stop the proxy; may be called several times."""
        if self._thread.is_alive():
            try:
                self._call(self._end())
            finally:
                self._stop()
            self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_WAIT_S)

    async def _apply(self, cut: Cut | None) -> None:
        if cut is not None and cut.kind == "reset":
            for writer in list(self._writers):
                _abort(writer)
            return
        self._cut = cut
        if cut is not None and cut.kind == "blackhole":
            self._flowing.clear()
        else:
            self._flowing.set()

    async def _end(self) -> None:
        self._server.close()
        self._flowing.set()
        for writer in list(self._writers):
            _abort(writer)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        try:
            target_reader, target_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _abort(writer)
            return
        writers = {writer, target_writer}
        self._writers |= writers
        pumps = (self._pump(reader, target_writer), self._pump(target_reader, writer))
        try:
            await asyncio.gather(*pumps)
        except OSError:
            pass
        finally:
            self._writers -= writers
            for each in writers:
                _abort(each)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_CHUNKS)
        sender = asyncio.create_task(self._send(in_transit, writer))
        try:
            while chunk := await reader.read(_CHUNK):
                await in_transit.put((self._loop.time(), chunk))
            await in_transit.put((self._loop.time(), b""))
            await sender
        finally:
            sender.cancel()

    async def _send(
        self, in_transit: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            arrived_at, chunk = await in_transit.get()
            await self._flowing.wait()
            cut = self._cut
            if cut is not None and cut.kind == "latency":
                await asyncio.sleep(max(0.0, arrived_at + cut.value - self._loop.time()))
            if cut is not None and cut.kind == "bandwidth":
                await asyncio.sleep(len(chunk) / cut.value)
            if not chunk:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    # With a linger time of 0, the other side sees a reset instead of an orderly close.
    transport_socket = writer.get_extra_info("socket")
    if transport_socket is not None:
        with contextlib.suppress(OSError):
            transport_socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
    writer.transport.abort()
