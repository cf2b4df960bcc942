"""A thousand connections of strangers, with one health check each, over and over."""

from __future__ import annotations

import select
import socket
import sys
import time
from contextlib import ExitStack, suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import END_STREAM, HEADERS, call, connected, frames_in, header_block

_CLIENTS = 1000
_METHOD = "/grpc.health.v1.Health/Check"


class Client:
    """A connection whose call is asked again as soon as it is answered."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._next = 1
        self._rest = b""

    def ask(self, block: bytes, request: bytes = b"") -> None:
        """Call with these headers."""
        self.connection.sendall(call(self._next, block, request))
        self._next += 2

    def is_answered(self) -> bool:
        """Read what has come; the headers that end a stream are an answer."""
        frames, self._rest = frames_in(self._rest + self.connection.recv(1 << 16))
        return any(kind == HEADERS and flags & END_STREAM for kind, flags, _ in frames)


def asking(target: Target, begin: Begin, *, source: str = "") -> Counts:
    """Let a thousand clients of one address ask, from that address if one is given."""
    block = header_block(_METHOD)
    answers = 0
    with ExitStack() as stack, select.epoll() as events:
        clients: dict[int, Client] = {}
        for _ in range(_CLIENTS):
            with suppress(OSError):
                client = Client(stack.enter_context(connected(target.place, source=source)))
                clients[client.connection.fileno()] = client
                events.register(client.connection, select.EPOLLIN)
        until = begin()
        for client in clients.values():
            client.ask(block)
        while time.monotonic() < until:
            for number, _ in events.poll(0.1):
                try:
                    if clients[number].is_answered():
                        answers += 1
                        clients[number].ask(block)
                except OSError:
                    events.unregister(number)
    return {"connections": len(clients), "answers": answers}


def _strike(target: Target, begin: Begin) -> Counts:
    return asking(target, begin)


ATTACK = Attack("many connections with one call each", _strike)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
