"""Fill the slots of a ring with one batch, or with several that are made together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.ring import seal_slot, void_slot
from headrace.server.batch.targets import Finished, Target, WirePlaces, message_frame
from headrace.v1 import shard_service_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A slot that is being filled.

    Attributes:
        memory: The memory of the whole slot.
        start: The offset of the payload in the memory.
        address: The address of the payload.
        generation: The generation of the slot.
        layout: The number of the payload's layout.
    """

    memory: NDArray[np.uint8]
    start: int
    address: int
    generation: int
    layout: int

    @property
    def payload(self) -> NDArray[np.uint8]:
        """Return the memory of the payload."""
        return self.memory[self.start :]

    def seal(self, message: bytes) -> None:
        """Write the batch's message and mark the slot as filled."""
        seal_slot(
            self.memory,
            generation=self.generation,
            message=message,
            start=self.start,
            payload_bytes=self.memory.size - self.start,
            layout=self.layout,
        )


class SlotPlaces:
    """Place batches in slots, and in messages if no slot is free.

    Args:
        take: Returns the slot for a batch, given its header, its `buffer_bytes` and its payload
            size.
        max_chunk_bytes: The largest payload of one message.
        is_checked: Whether slots carry the hash of their payload.
    """

    def __init__(
        self,
        take: Callable[[pb.BatchHeader, tuple[int, ...], int], Slot | None],
        *,
        max_chunk_bytes: int,
        is_checked: bool,
    ) -> None:
        self._take = take
        self._is_checked = is_checked
        self._messages = WirePlaces(max_chunk_bytes)
        self._slots: list[tuple[Slot, bytes] | None] = []

    def add(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> None:
        """Take a slot, or a message, for one more batch."""
        size = header.payload_bytes
        header.payload_xxh3 = 0
        slot = self._take(header, buffer_bytes, size)
        if slot is None:
            self._messages.add(header, buffer_bytes)
            self._slots.append(None)
            return
        void_slot(slot.memory)
        message = message_frame(pb.ReadBatchesResponse(batch=header))
        self._slots.append((slot, message))

    def find(self) -> list[Target]:
        """Return the places in slots, and in messages for batches without a slot."""
        targets = iter(self._messages.find())
        return [
            next(targets)
            if filled is None
            else (b"", filled[0].address, filled[0].payload.size, 0, None)
            for filled in self._slots
        ]

    def finish(self) -> list[Finished]:
        """Seal the slots; return the messages of batches without a slot."""
        messages = iter(self._messages.finish())
        finished: list[Finished] = []
        for filled in self._slots:
            if filled is not None:
                finished.append(self._seal(*filled))
                continue
            batch_count = 0
            while not batch_count:
                message, batch_count = next(messages)
                finished.append((message, batch_count))
        return finished

    def _seal(self, slot: Slot, message: bytes) -> Finished:
        if self._is_checked:
            response = pb.ReadBatchesResponse.FromString(message)
            response.batch.payload_xxh3 = xxhash.xxh3_64_intdigest(slot.payload.data)
            message = message_frame(response)
        slot.seal(message)
        return b"", 1
