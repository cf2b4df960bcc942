"""The feed that comes through shared memory: the ring. Only what is small goes over sockets.

The ring's socket says of each event where it is: in a slot of the ring, or in the next message of
the gRPC call, whose status tells how the stream ended. ``docs/ring.md`` has the rules.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from headrace.client._assembler import StreamAssembler
from headrace.client._feed import Event
from headrace.client._hops import HopClock
from headrace.client._ring_memory import RingMemory
from headrace.client._transport import Transport
from headrace.client._wire import WireFeed
from headrace.errors import RebalanceError, ServerUnreachableError, StreamCorruptError
from headrace.ring import Record, RecordKind, RecordReader, open_slot, record
from headrace.v1 import shard_service_pb2 as pb

_RECEIVE_BYTES = 65536
_TIMEVAL = struct.Struct("@ll")


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

    def events(self) -> Iterator[Event | None]:
        """Yield the stream's events; `Feed` holds the contract."""
        self._clock.enter("server")
        while records := self._receive():
            for said in records:
                if said.kind is RecordKind.FULL:
                    self._ask_for_more(said)
                    continue
                event = self._event(said)
                yield event
                if event is not None:
                    self._clock.enter("server")
                if self._memory.is_spent:
                    raise RebalanceError(
                        "most of the ring is held by processes that were forked; a new one follows"
                    )
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

    def _event(self, said: Record) -> Event | None:
        if said.kind is RecordKind.SLOT:
            return self._open(said)
        if said.kind is not RecordKind.WIRE:
            raise StreamCorruptError(f"the server sent the record {said.kind.name} of a client")
        message = self._wire.next_message()
        if message is None:
            raise StreamCorruptError("the call ended before a message that was announced")
        return self._wire.take(message)

    def _open(self, said: Record) -> Event:
        self._clock.enter("client")
        if said.generation <= self._generation:
            raise StreamCorruptError(
                f"a slot of generation {said.generation} came after {self._generation}; wanted a "
                "newer one"
            )
        self._generation = said.generation
        slot = open_slot(self._memory.array, begin=said.begin, generation=said.generation)
        payload = self._memory.view(
            slot.payload_begin, slot.payload_end, slot=said.begin, generation=said.generation
        )
        message = pb.ReadBatchesResponse.FromString(slot.message)
        self._transport.ring_batch_count += 1
        return self._assembler.adopt(message.batch, payload)

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
