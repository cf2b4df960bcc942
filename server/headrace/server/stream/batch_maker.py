"""Make the batches of a stream: write planned samples into the places of an outlet.

Contract:

1. Several batches are made in one pass; a single batch is the case n=1. Their bytes are the same
   either way, except that some may share a message if the client has asked for that.
2. All or none: if a block of the batches is not in memory, or they are too large to be made
   together, or there is not enough memory for all of them, then nothing is made, no block stays
   pinned and no place is taken.
3. Batches are made together as long as their payloads are expected to take at most
   `TOGETHER_BYTES`; a larger batch is made alone.
4. Samples in blocks of several layouts are copied into one block first.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.server.batch.batch_writer import Measured
from headrace.server.batch.targets import Finished, Outlet, Places
from headrace.server.cache.gather import BlockRows, Rows, StagedRows
from headrace.server.cache.readers import Blocks
from headrace.server.layout.wire_columns import refuse_large
from headrace.server.plan.planned_batches import PlannedBatch
from headrace.server.stream.stream_setup import Contents, batch_header

TOGETHER_BYTES = 9 << 18
"""Most payload made in one pass: beyond 2 MiB sharing a pass saves little (measured), and each
stream holds this much twice. An eighth more is for ids and boundaries, so that eight batches of 256
KiB, as they are planned, take one pass of eight and not one of seven and another one."""


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Batches that were made together.

    Attributes:
        messages: The messages to send, in order.
        sizes: Bytes of each payload.
        buffer_bytes: Bytes of each buffer of each payload.
    """

    messages: list[Finished]
    sizes: list[int]
    buffer_bytes: list[tuple[int, ...]]


class BatchMaker:
    """Makes the batches of one stream; not thread-safe. The contract is above.

    Args:
        contents: The contents of the stream.
        blocks: The blocks that hold the samples.
        outlet: Where to write batches.
        max_batch_bytes: The largest payload of one batch.
        claim: Claims memory for batches before it is used.

    Attributes:
        most: How many batches to make next.
    """

    def __init__(
        self,
        contents: Contents,
        *,
        blocks: Blocks,
        outlet: Outlet,
        max_batch_bytes: int,
        claim: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._contents = contents
        self._blocks = blocks
        self._outlet = outlet
        self._max_batch_bytes = max_batch_bytes
        self._claim = claim
        self._most_bytes = min(contents.max_chunk_bytes, max_batch_bytes)
        self._writer = contents.writer(blocks.layout)
        self.most = 1

    def note(self, *, payload_bytes: int, is_there: bool) -> None:
        """Choose how many batches to make next.

        Args:
            payload_bytes: The payload bytes of the latest batch.
            is_there: Whether all its blocks were in memory.
        """
        fitting = max(1, TOGETHER_BYTES // max(1, payload_bytes))
        # Stages process one batch at a time.
        is_able = self._contents.pipeline is None
        is_likely = is_there and payload_bytes <= self._most_bytes
        self.most = min(2 * self.most, fitting) if is_able and is_likely else 1

    def make(self, batches: Sequence[PlannedBatch]) -> EncodedBatches | None:
        """Make batches that are alike (`PlannedBatch.is_alike`) if all their blocks are in memory.

        Raises:
            HeadraceError: See `write`.
        """
        found = batches[0].found.up_to(batches[-1].found)
        with self._blocks.lease(found.touched) as is_whole:
            if not is_whole:
                return None
            return self.write(batches, self._blocks.rows(found.blocks, found.offsets))

    def write(
        self, batches: Sequence[PlannedBatch], rows: Rows, *, beside: int = 0
    ) -> EncodedBatches | None:
        """Make batches from any samples; None if they are too large to be made together.

        Args:
            batches: The planned batches.
            rows: The samples, batch after batch.
            beside: Bytes of memory that the samples take now.

        Raises:
            BadArgumentError: A payload would exceed the limit.
            ShortError: There is not enough memory.
        """
        found = batches[0].found.up_to(batches[-1].found)
        count = found.past - found.first
        beside += self._writer.row_bytes * count
        if not isinstance(rows, BlockRows):
            staged = self.stage(count)
            staged.add(np.arange(count), rows)
            rows = staged.in_one_block()
            beside += rows.memory.array.nbytes
        writer = self._writer
        measured = writer.measure(rows, found, len(batches))
        largest = max(measured.sizes)
        if largest > self._most_bytes:
            if len(batches) > 1:
                return None
            refuse_large(largest, self._max_batch_bytes)
        # The columns of a batch of several messages are gathered elsewhere first.
        copies = 1 if largest <= self._most_bytes else 2
        self._claim(beside + copies * sum(measured.sizes))
        places = self._outlet.places()
        self._place(batches, measured, places)
        shown = self._contents.shown_ids(found.item_ids)
        writer.write(rows, shown, measured, places.find())
        return EncodedBatches(places.finish(), measured.sizes, measured.buffer_bytes)

    def stage(self, count: int) -> StagedRows:
        """Return where a number of samples can be copied to."""
        return StagedRows(
            self._writer.projection, count, max_bytes=self._max_batch_bytes, claim=self._claim
        )

    def _place(self, batches: Sequence[PlannedBatch], measured: Measured, places: Places) -> None:
        """Take a place for each batch; all share one header, because they differ in few fields."""
        header = batch_header(batches[0])
        last: tuple[int, ...] | None = None
        for planned, lengths, size in zip(
            batches, measured.buffer_bytes, measured.sizes, strict=True
        ):
            header.step = planned.step
            header.position = planned.part.position
            header.resume_token = planned.token
            header.substitute_count = planned.substitutes
            if lengths is not last:
                header.buffer_bytes[:] = last = lengths
                header.payload_bytes = size
            places.add(header, lengths)
