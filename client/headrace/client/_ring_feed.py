"""The feed that comes through shared memory: the ring. Only what is small goes over sockets.

The ring's socket says of each event where it is: in a slot of the ring, or in the next message of
the gRPC call, whose status tells how the stream ended. ``docs/ring.md`` has the rules.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.client._assembler import BatchEvent, StreamAssembler
from headrace.client._feed import Event
from headrace.client._hops import HopClock
from headrace.client._layout import Places
from headrace.client._ring_batch import SlotEvent, SlotHead, read_message
from headrace.client._ring_memory import RingMemory, Slot
from headrace.client._transport import Transport
from headrace.client._wire import WireFeed
from headrace.errors import (
    HeadraceError,
    RebalanceError,
    ServerUnreachableError,
    StreamCorruptError,
)
from headrace.ring import OpenSlot, Record, RecordKind, RecordReader, open_slot, record

_RECEIVE_BYTES = 65536
_UINT8 = np.dtype(np.uint8)
_TIMEVAL = struct.Struct("@ll")

_RUN_BYTES = 4 << 20
"""Batches that come together are handed over together up to so many bytes, as a server announces
them: releases wait meanwhile."""
_RUN_SHARE = 8
"""And up to this part of the ring."""


class RingFeed:
    """One `AttachRing` call with its ring."""

    def __init__(
        self,
        wire: WireFeed,
        memory: RingMemory,
        connection: socket.socket,
        *,
        assembler: StreamAssembler,
        clock: HopClock,
        transport: Transport,
        silence_s: float,
        takes_runs: bool = False,
    ) -> None:
        """Take over a ring that was just attached.

        Args:
            wire: The call, after its offer.
            memory: The ring.
            connection: To the server.
            assembler: What both kinds of batches go through.
            clock: Where the feed notes what it waits for.
            transport: Counts the batches in the ring.
            silence_s: How long the server may say nothing.
            takes_runs: Whether batches may come together.
        """
        # The kernel's own time-out: Python's would ask the kernel twice for each wait, and would
        # make releases wait where they must not.
        connection.settimeout(None)
        whole_s, part_s = divmod(silence_s, 1)
        timeout = _TIMEVAL.pack(int(whole_s), max(1, int(part_s * 1e6)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
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
        self._layout = 0
        self._places: Places | None = None
        self._sample_count = 0

    def events(self) -> Iterator[Event | None]:
        """Yield the stream's events; `Feed` holds the contract."""
        self._clock.enter("server")
        while records := self._receive():
            self._clock.enter("client")
            for event in self._events_of(records):
                yield event
                self._memory.give_back()
                if self._memory.is_spent:
                    raise RebalanceError(
                        "most of the ring is held by processes that were forked; a new one follows"
                    )
            self._clock.enter("server")
        # The server closed the socket; the call says why.
        if self._wire.next_message() is not None:
            raise StreamCorruptError("a message came that the ring's socket did not announce")

    def cancel(self) -> None:
        """End the call, and the wait for the socket."""
        self._wire.cancel()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> list[Record]:
        """Wait for records; none at the end."""
        records: list[Record] = []
        while not records:
            try:
                said = self._connection.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                raise self._silent() from None
            except OSError:
                # A server that was killed, or did not read our last releases.
                said = b""
            if not said:
                return []
            records = self._records.feed(said)
        return records

    def _events_of(self, records: Sequence[Record]) -> Iterator[Event | None]:
        """Yield what was announced; batches that follow each other as the last one of them."""
        for said in records:
            if said.kind is RecordKind.SLOT:
                try:
                    self._run.append(self._open(said))
                except HeadraceError:
                    yield from self._together()
                    raise
                if self._run_bytes < self._most_bytes:
                    continue
            yield from self._together()
            if said.kind is RecordKind.FULL:
                self._ask_for_more(said)
            elif said.kind is not RecordKind.SLOT:
                yield self._message(said)
        yield from self._together()

    def _together(self) -> Iterator[BatchEvent]:
        """Yield the batches opened by now, which are let go of here."""
        run, self._run, self._run_bytes = self._run, deque(), 0
        if run:
            last = run.pop()
            if run:
                last.ahead = run
            yield last

    def _message(self, said: Record) -> Event | None:
        if said.kind is not RecordKind.WIRE:
            raise StreamCorruptError(f"the server sent the record {said.kind.name} of a client")
        message = self._wire.next_message()
        if message is None:
            raise StreamCorruptError("the call ended before a message that was announced")
        return self._wire.take(message)

    def _open(self, said: Record) -> BatchEvent:
        begin, generation = said.begin, said.generation
        if generation <= self._generation:
            raise StreamCorruptError(
                f"a slot of generation {generation} came after {self._generation}; wanted a "
                "newer one"
            )
        self._generation = generation
        opened = open_slot(self._memory.array, begin=begin, generation=generation)
        size = opened.payload_end - begin
        slot = self._memory.lend(begin, generation, size)
        self._run_bytes += size
        self._transport.ring_batch_count += 1
        places = self._places
        if (
            places is None
            or opened.layout != self._layout
            or opened.payload_end - opened.payload_begin != places.payload_bytes
        ):
            return self._read(opened, slot)
        self._assembler.pass_over(self._sample_count)
        return SlotEvent(
            slot,
            SlotHead(opened.message),
            places,
            begin=opened.payload_begin,
            sample_count=self._sample_count,
        )

    def _read(self, opened: OpenSlot, slot: Slot) -> BatchEvent:
        """Read a batch's header, and take note of its layout."""
        header = read_message(opened.message)
        size = opened.payload_end - opened.payload_begin
        event = self._assembler.adopt(header, slot.array((size,), _UINT8, opened.payload_begin))
        # Who has to check each payload needs each header; who hands out arrays, plain ones.
        is_plain = opened.layout and self._most_bytes and not header.payload_xxh3
        self._places = self._assembler.last_places if is_plain else None
        self._layout, self._sample_count = opened.layout, header.sample_count
        return event

    def _ask_for_more(self, full: Record) -> None:
        """Say that all before ``full`` is taken, after all slots that are free by now."""
        self._memory.flush()
        with contextlib.suppress(OSError):
            self._connection.sendall(record(RecordKind.HUNGRY, 0, full.generation))

    def _silent(self) -> ServerUnreachableError:
        return ServerUnreachableError(
            f"{self._wire.target} said nothing of the ring for "
            f"{self._silence_s:.0f} s, not even a heartbeat; the server hangs",
            target=self._wire.target,
        )
