"""Write a stream's batches into its ring.

Contract:

1. A batch for which there is room is written directly into a slot, and announced when it is
    complete.
2. If there is no room, the stream waits, before writing, until the client has released enough, or
   has said that it has taken all batches. In the latter case the batch is sent in messages of the
   call, so the server never waits for a client that keeps all its batches.
3. A batch larger than the ring is sent in messages at once.
4. Batches in messages are announced too, in order, so that the client knows where to read.
5. A slot is reused only after the client has released it, with its generation.
6. `wake` ends every wait.
7. Announcements of fast streams are sent together, so that a waiting client is not woken for each.
   One is delayed until `_TOGETHER_S` after the previous ones, or until `_TOGETHER_BYTES` are
   announced, but at most while a batch is made: all are sent before any wait for room or for a
   store.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.ring import RecordKind, payload_start, record
from headrace.server.batch.targets import ClientGoneError, Places
from headrace.server.stream.encode_thread import Messages
from headrace.server.transports.ring.channel import RingChannel
from headrace.server.transports.ring.memory import RingMemory
from headrace.server.transports.ring.slots import Slot, SlotPlaces
from headrace.v1 import shard_service_pb2 as pb

# The bytes that protobuf adds to the fields known before the payload: tags, sizes and the hash; and
# the most bytes that the length of one buffer takes.
_MESSAGE_SPARE = 64
_VARINT_BYTES = 11
_WIRE = record(RecordKind.WIRE)
# Less than a training step, but many batches of small samples. A client that slept has cold caches:
# its first batch takes 150 us, and each that came with it 6 us.
_TOGETHER_S = 0.008
# For larger batches that matters less, and a ring must not run empty meanwhile. With 4 MiB, batches
# of 640 KiB cost their client a tenth more.
_TOGETHER_BYTES = 16 << 20
# How much of the largest recent batch is still expected after the next; ragged batches vary.
_DECAY = 0.98


class RingObserver(Protocol):
    """The events that a ring reports."""

    def placed(self, *, is_in_ring: bool) -> None:
        """Count a batch, in the ring or inline for lack of room."""

    def blocked(self, *, seconds: float) -> None:
        """Count time during which the ring was full."""


class RingOutlet:
    """Accept the batches of one stream, according to the contract above.

    Args:
        memory: The ring; closed with the outlet.
        channel: A channel to its client, closed with the outlet.
        max_chunk_bytes: The largest payload of one message.
        check_payload: Whether slots carry the hash of their payload.
        observer: Receives reports of batches and waits.
        on_close: Called once, when the ring is freed.
        now: Returns seconds of a monotonic clock.
    """

    def __init__(
        self,
        memory: RingMemory,
        channel: RingChannel,
        *,
        max_chunk_bytes: int,
        check_payload: bool,
        observer: RingObserver,
        on_close: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._memory = memory
        self._channel = channel
        self._max_chunk_bytes = max_chunk_bytes
        self._check_payload = check_payload
        self._observer = observer
        self._on_close = on_close
        self._likely_bytes = 0
        self._shape: tuple[int, tuple[int, ...]] | None = None
        self._shapes = 0
        self._fulls = 0
        self._is_hungry = False
        self._address = memory.array.ctypes.data
        # Slots that were filled but not yet announced; empty for batches in messages.
        self._announcements: deque[bytes] = deque()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._together_bytes = min(_TOGETHER_BYTES, memory.array.size // 8)
        self._announced_at = -_TOGETHER_S
        self._closing = threading.Lock()
        self._is_closed = False

    def wait(self) -> None:
        """Wait until there is likely room for the next batch, or it need not wait."""
        self._take()
        if self._has_room():
            return
        began = time.monotonic()
        self._fulls += 1
        self._is_hungry = False
        self._held.append(record(RecordKind.FULL, 0, self._fulls))
        self.flush()
        while not (self._has_room() or self._is_hungry or self._channel.is_woken):
            self._channel.wait()
            self._take()
        self._observer.blocked(seconds=time.monotonic() - began)

    def room(self, most: int) -> int:
        """Return how many batches of the likely size fit now, at least one."""
        return self._memory.room(self._likely_bytes, most) if self._likely_bytes else 1

    def has_room(self) -> bool:
        """Return whether another batch of the likely size fits now, or needs no slot."""
        self._take()
        return self._has_room()

    def places(self) -> Places:
        """Begin one or several batches, each in a slot if one is free, else in messages."""
        return SlotPlaces(
            self._slot, max_chunk_bytes=self._max_chunk_bytes, is_checked=self._check_payload
        )

    def _slot(
        self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...], payload_bytes: int
    ) -> Slot | None:
        """Take a slot, if one is free; its announcement follows when it is filled."""
        room = header.ByteSize() + _MESSAGE_SPARE + _VARINT_BYTES * len(buffer_bytes)
        start = payload_start(room)
        size = start + payload_bytes
        self._likely_bytes = max(size, int(self._likely_bytes * _DECAY))
        taken = self._memory.take(size)
        self._observer.placed(is_in_ring=taken is not None)
        if taken is None:
            self._announcements.append(b"")
            return None
        self._announcements.append(record(RecordKind.SLOT, *taken))
        self._held_bytes += size
        return Slot(
            self._memory.array[taken[0] : taken[0] + size],
            start=start,
            address=self._address + taken[0] + start,
            generation=taken[1],
            layout=self._layout_number(header, buffer_bytes),
        )

    def _layout_number(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> int:
        """Return the number of the last batch's layout, or a new number if the layout differs."""
        shape = (header.sample_count, buffer_bytes)
        if shape != self._shape:
            self._shape = shape
            self._shapes += 1
        return self._shapes

    def announce(self) -> None:
        """Announce the next filled slot, if any, to the client, now or a little later."""
        if announcement := self._announcements.popleft():
            self._held.append(announcement)
            if (
                self._held_bytes >= self._together_bytes
                or self._now() - self._announced_at >= _TOGETHER_S
            ):
                self.flush()

    def flush(self) -> None:
        """Send all pending announcements to the client."""
        if self._held and self._channel.send(b"".join(self._held)):
            self._held.clear()
            self._held_bytes = 0
            self._announced_at = self._now()

    def announce_message(self) -> bool:
        """Announce that a message of the call comes next; return whether this was sent."""
        self._held.append(_WIRE)
        self.flush()
        return not self._held

    def wake(self) -> None:
        """End a wait, from any thread."""
        with self._closing:
            if not self._is_closed:
                self._channel.wake()

    def close(self) -> None:
        """Free the ring; the client keeps its mapping."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._channel.close()
                self._memory.close()
                self._on_close()

    def running(self, stream: Messages, ahead: Callable[[], Messages]) -> RingMessages:
        """Return the messages of a stream that are not in the ring; the ring itself is ahead."""
        del ahead
        return RingMessages(stream, self)

    def carried(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield all messages that are not in the ring."""
        return messages

    def _has_room(self) -> bool:
        likely = self._likely_bytes
        return self._memory.fits(likely) or not self._memory.could_fit(likely)

    def _take(self) -> None:
        for said in self._channel.take():
            if said.kind is RecordKind.RELEASE:
                self._memory.give(said.start, said.generation)
            elif said.kind is RecordKind.HUNGRY and said.generation == self._fulls:
                self._is_hungry = True


class RingMessages:
    """The messages of a stream with a ring; each is announced before it is sent.

    Args:
        stream: The stream, which writes its batches to the outlet.
        outlet: The outlet of the stream.
    """

    def __init__(self, stream: Messages, outlet: RingOutlet) -> None:
        self._stream = stream
        self._outlet = outlet

    def messages(self) -> Generator[bytes, None, None]:
        """Yield the messages that are not in the ring."""
        with closing(self._stream.messages()) as messages:
            try:
                for message in messages:
                    # A message that was not announced belongs to a stream that is being ended.
                    if self._outlet.announce_message():
                        yield message
            except ClientGoneError:
                return
            except HeadraceError:
                # Announcements before it remain valid.
                with suppress(ClientGoneError):
                    self._outlet.flush()
                raise

    def cancel(self) -> None:
        """End the messages, from any thread."""
        self._stream.cancel()
