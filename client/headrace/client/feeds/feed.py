"""Feeds: the interface between a reader and the transport that brings its payloads.

A reader knows places, failures and deadlines. A feed knows one stream of one server, and where its
payloads lie: in the messages that brought them, in a buffer that several messages are copied into,
or in memory that the server wrote.

Contract of `Feed.events`:

1. Success: each batch, whole and with the stated checksum, and each end of an epoch, in the order
   in which the server sent them; None for every other message, as a sign of life. The generator
   returns when the server has ended the stream.
2. Failure: a `HeadraceError`, after all events that came before it.
3. Silence: a server that sends nothing for the set time while the caller waits for an event is a
   failure. Time that the caller takes between two events does not count.
4. Cancel, from any thread, any number of times: the generator returns or raises at once.
5. Clock: while the generator runs, the clock shows what the feed waits for or works on.
6. The first message of a stream is no event: None comes before all events.
7. Memory: a payload belongs to its event. It is neither moved nor overwritten as long as a view of
   it exists, whatever becomes of the feed.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from headrace.client.feeds.wait_times import HopClock
from headrace.client.servers.endpoints import Endpoint
from headrace.client.wire.assembler import BatchEvent, EpochEndEvent
from headrace.v1 import shard_service_pb2 as pb

Event = BatchEvent | EpochEndEvent


class Feed(Protocol):
    """One stream of one server."""

    def events(self) -> Iterator[Event | None]:
        """Yield the stream's events; the module docstring holds the contract."""

    def cancel(self) -> None:
        """End the stream, from any thread."""


class OpenFeed(Protocol):
    """A way to open feeds; closes what it opened at the end of the context."""

    def __call__(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> AbstractContextManager[Feed]:
        """Open a stream.

        Args:
            endpoint: The server.
            request: What to read.
            clock: Where the feed notes what it waits for.
        """
