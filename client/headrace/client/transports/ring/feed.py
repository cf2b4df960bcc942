"""The feed through shared memory, the ring. Only small messages go over sockets.

The ring's socket says where each event is: in a slot of the ring, or in the next message of the
gRPC call, whose status says how the stream ended. ``docs/ring.md`` has the rules.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence

from headrace.client.feeds.feed import Event
from headrace.client.feeds.grpc_feed import WireFeed
from headrace.client.feeds.transport import TransportState
from headrace.client.feeds.wait_times import HopClock
from headrace.client.transports.ring.batch import SlotEvent
from headrace.client.transports.ring.layout import SlotForm, SlotLayout
from headrace.client.transports.ring.memory import Mapping, RingMemory, Slot
from headrace.client.wire.assembler import BatchEvent, StreamAssembler, header_of
from headrace.errors import (
    HeadraceError,
    RebalanceError,
    ServerUnreachableError,
    StreamCorruptError,
)
from headrace.ring import OpenSlot, RecordKind, RecordReader, kind_of, open_slot, record

_RECEIVE_BYTES = 65536
# Comparing numbers takes a third of the time of comparing members of an enumeration.
_SLOT = int(RecordKind.SLOT)

_Said = tuple[int, int, int]
"""The kind of a record, where its slot starts, and the slot's generation."""
_TIMEVAL = struct.Struct("@ll")

_RUN_BYTES = 16 << 20
"""Most bytes of batches that are handed over together if they come together, as in a server's
announcements: releases wait meanwhile. The first of a run costs as much as fifteen others."""
_RUN_SHARE = 8
"""The same bound as a part of the ring: the lower one holds."""


class RingFeed:
    """One call with its ring."""

    def __init__(
        self,
        wire: WireFeed,
        memory: RingMemory,
        connection: socket.socket,
        *,
        assembler: StreamAssembler,
        clock: HopClock,
        transport: TransportState,
        silence_s: float,
        takes_runs: bool = False,
    ) -> None:
        """Take over a ring that was just attached.

        Args:
            wire: The call, after its offer.
            memory: The ring.
            connection: A connection to the server.
            assembler: Checks both kinds of batches.
            clock: Where the feed notes what it waits for.
            transport: Counts the batches in the ring.
            silence_s: How long the server may be silent.
            takes_runs: Whether batches may come together.
        """
        # The kernel's own timeout: Python's would take two system calls for each wait, and would
        # make releases wait where they must not.
        connection.settimeout(None)
        whole_s, part_s = divmod(silence_s, 1)
        timeout = _TIMEVAL.pack(int(whole_s), max(1, int(part_s * 1e6)))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, timeout)
        self._silence_s = silence_s
        self._wire = wire
        self._memory = memory
        self._connection = connection
        self._assembler = assembler
        self._clock = clock
        self._transport = transport
        self._records = RecordReader()
        self._generation = 0
        self._most_bytes = min(_RUN_BYTES, memory.array.size // _RUN_SHARE) if takes_runs else 0
        self._run: deque[BatchEvent] = deque()
        self._run_bytes = 0
        self._run_alike = 0
        self._alike: SlotLayout | None = None
        self._number = 0

    def events(self) -> Iterator[Event | None]:
        """Yield the stream's events; `Feed` holds the contract."""
        self._clock.await_answer("server")
        while records := self._receive():
            self._clock.enter("client")
            for event in self._events_of(records):
                yield event
                self._memory.give_back()
                if self._memory.is_spent:
                    raise RebalanceError(
                        "forked processes hold most of the ring; a new ring follows"
                    )
            self._clock.await_answer("server")
        # The server closed the socket; the call says why.
        if self._wire.next_message() is not None:
            raise StreamCorruptError(
                "the server sent a message that the ring's socket did not announce"
            )

    def cancel(self) -> None:
        """End the call, and the wait for the socket."""
        self._wire.cancel()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> list[_Said]:
        """Wait for records; none at the end."""
        records: list[_Said] = []
        while not records:
            try:
                said = self._connection.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                raise self._silent() from None
            except OSError:
                # The server was killed, or did not read our last releases.
                said = b""
            if not said:
                return []
            records = self._records.cut(said)
        return records

    def _events_of(self, records: Sequence[_Said]) -> Iterator[Event | None]:
        """Yield the announced events; a run of batches as its last one, with the others ahead."""
        mapping = self._memory.mapping
        for kind, start, generation in records:
            if kind == _SLOT:
                try:
                    self._run.append(self._open(mapping, start, generation))
                except HeadraceError:
                    yield from self._together()
                    raise
                if self._run_bytes < self._most_bytes:
                    continue
            yield from self._together()
            if kind == RecordKind.FULL:
                self._ask_for_more(generation)
            elif kind != _SLOT:
                yield self._message(kind_of(kind))
        yield from self._together()

    def _together(self) -> Iterator[BatchEvent]:
        """Yield the batches opened so far, and forget them."""
        run, self._run = self._run, deque()
        if run:
            self._count_alike()
            self._transport.batch_count += len(run)
            self._memory.note_lent(self._generation, self._run_bytes)
            self._run_bytes = 0
            last = run.pop()
            if run:
                last.ahead = run
            yield last

    def _count_alike(self) -> None:
        count, self._run_alike = self._run_alike, 0
        if count and self._alike is not None:
            self._assembler.pass_over(count, count * self._alike.form.sample_count)

    def _message(self, kind: RecordKind) -> Event | None:
        if kind is not RecordKind.WIRE:
            raise StreamCorruptError(
                f"the server sent the record {kind.name}, which only clients send"
            )
        message = self._wire.next_message()
        if message is None:
            raise StreamCorruptError("the call ended before an announced message")
        return self._wire.take(message)

    def _open(self, mapping: Mapping, start: int, generation: int) -> BatchEvent:
        if generation <= self._generation:
            raise StreamCorruptError(
                f"a slot of generation {generation} came after {self._generation}; expected a "
                "newer one"
            )
        opened = open_slot(mapping.bytes, start=start, generation=generation)
        self._generation = generation
        end = opened.payload_end
        self._run_bytes += end - start
        layout = self._alike
        if layout is not None and opened.layout != self._number:
            layout = self._relaid(layout.form, opened)
        if (
            layout is None
            or end - opened.payload_start != layout.payload_bytes
            or (layout.form.ragged and not layout.form.fits(layout, mapping, opened.payload_start))
        ):
            return self._read(opened, mapping)
        self._run_alike += 1
        return SlotEvent(mapping, opened, layout)

    def _relaid(self, form: SlotForm, opened: OpenSlot) -> SlotLayout | None:
        """Return the layout of a batch with another number; None if its columns must be read."""
        if not (form.ragged and opened.layout):
            return None
        layout = form.layout_of(opened.message, opened.payload_end - opened.payload_start)
        if layout is not None:
            self._alike, self._number = layout, opened.layout
        return layout

    def _read(self, opened: OpenSlot, mapping: Mapping) -> BatchEvent:
        """Read a batch's header, and remember its layout."""
        self._count_alike()
        self._alike = None
        payload = Slot(mapping, opened).payload()
        header = header_of(opened.message)
        event = self._assembler.adopt(header, payload)
        number, self._number = self._number, opened.layout
        # Only a reader that checks payloads needs every header.
        if number and opened.layout and self._most_bytes and not header.payload_xxh3:
            form = SlotForm(event)
            # The second batch of a form is probably not the last.
            if form.ragged or number == opened.layout:
                self._alike = form.layout_of(opened.message, payload.size)
        return event

    def _ask_for_more(self, number: int) -> None:
        """Acknowledge this ``FULL``, after releasing all free slots."""
        self._memory.flush()
        with contextlib.suppress(OSError):
            self._connection.sendall(record(RecordKind.HUNGRY, 0, number))

    def _silent(self) -> ServerUnreachableError:
        return ServerUnreachableError(
            f"{self._wire.target} sent nothing about the ring for {self._silence_s:.0f} s, not "
            "even a heartbeat; the server is stuck",
            target=self._wire.target,
        )
