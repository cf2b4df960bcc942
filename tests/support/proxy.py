"""A TCP proxy between a client and a server, on which the network's faults are played."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PART = 16 * 1024
_TICK_S = 0.05


class Proxy:
    """Passes bytes on to ``upstream``, until it is told to do something else.

    Attributes:
        address: Where clients connect.
        upstream: ``host:port`` of new connections; may be changed at any time.
        connection_count: Connections so far.
        passed_bytes: Bytes from the server so far, over all connections.
        reset_after: Bytes from the server after which a connection is reset, one for each of the
            next connections; those behind the last are left alone.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.connection_count = self.passed_bytes = 0
        self.reset_after: list[int] = []
        self._flows = threading.Event()
        self._flows.set()
        self._ended = threading.Event()
        self._broken = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_TICK_S)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    def cut(self) -> None:
        """Let nothing through any more, and say nothing of it."""
        self._flows.clear()

    def break_off(self) -> None:
        """Reset all connections, also those to come."""
        self._broken.set()

    def mend(self) -> None:
        """Let everything through again."""
        self._broken.clear()
        self._flows.set()

    def close(self) -> None:
        """End all connections."""
        self._ended.set()
        self._flows.set()
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                client, _ = self._listener.accept()
                self.connection_count += 1
                if self._broken.is_set():
                    _reset(client)
                    continue
                limit = self.reset_after.pop(0) if self.reset_after else None
                thread = threading.Thread(target=self._serve, args=(client, limit), name="proxied")
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket, limit: int | None) -> None:
        host, _, port = self.upstream.rpartition(":")
        with client, contextlib.suppress(OSError):
            if not self._wait_for_flow():
                return
            with socket.create_connection((host, int(port))) as server:
                self._pass_on(client, server, limit)

    def _pass_on(self, client: socket.socket, server: socket.socket, limit: int | None) -> None:
        left = limit
        poll = select.poll()  # select() takes no more than 1,024 files of a process
        sides = {each.fileno(): each for each in (client, server)}
        for each in sides:
            poll.register(each, select.POLLIN)
        while not self._ended.is_set():
            ready = [sides[each] for each, _ in poll.poll(_TICK_S * 1000)]
            if self._broken.is_set():
                _reset(client)
                return
            for source in ready:
                if not self._wait_for_flow():
                    return
                part = source.recv(_PART)
                if not part:
                    return
                if source is server and left is not None:
                    left -= len(part)
                    if left <= 0:
                        # The last bytes go out first, so that a message breaks in its middle.
                        client.sendall(part[: len(part) + left])
                        _reset(client)
                        return
                (client if source is server else server).sendall(part)
                self.passed_bytes += len(part) if source is server else 0

    def _wait_for_flow(self) -> bool:
        while not self._flows.wait(_TICK_S):
            if self._ended.is_set():
                return False
        return not self._ended.is_set()


@contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """Run a proxy in front of a server."""
    proxy = Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


def _reset(connection: socket.socket) -> None:
    # Closing with a linger of nothing sends RST.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
