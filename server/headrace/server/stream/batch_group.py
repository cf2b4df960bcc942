"""Make several batches of a stream in one pass.

A batch of a megabyte is little work for compiled loops, and a lot of Python around them, which
each batch drives out of the processor's caches: 240 us for what takes 40 in a loop by itself. So
what can be shared is done once for a few batches: their blocks are pinned together, one compiled
call lays them out and one writes all of them, their heads and their hashes, without Python's lock.

Contract:

1. The messages are those that `headrace.server.batch.assemble` makes of each batch by itself, or
   some of them in one message where the client has asked for that.
2. All or none: where something of the batches is not in memory, or one of them is of a kind that is
   made otherwise, or there is no memory for all of them, nothing is made, nothing stays pinned and
   no place is taken.
3. What is made together is not more than `TOGETHER_BYTES` of payload, or it is one batch.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.server.batch.compiled_batches import AtOnce, Measured
from headrace.server.batch.frames import Finished
from headrace.server.batch.transport import Outlet, Places
from headrace.server.cache.gather import BlockRows, Projection
from headrace.server.cache.stream_blocks import Blocks
from headrace.server.kernels.loader import KERNELS
from headrace.server.plan.planned_batches import PlannedBatch
from headrace.server.shares import ShortError
from headrace.server.stream.stream_setup import Contents, batch_header

TOGETHER_BYTES = 2 << 20
"""Payload that is made together: from there on what is shared is little (measured), and each stream
holds as much twice."""

# What a row takes besides its part of the payload: ids, places, spans of some columns.
_ROW_BYTES = 128

# Shorter payloads are hashed by other means.
_LEAST_BYTES = 241


@dataclass(frozen=True, slots=True)
class Made:
    """Batches that were made together.

    Attributes:
        messages: What goes out, in order.
        sizes: Bytes of each payload.
    """

    messages: list[Finished]
    sizes: list[int]


class Several:
    """Makes the batches of one stream; the contract is above.

    Not safe for several threads.

    Args:
        contents: What the stream sends.
        projection: What it needs of the dataset.
        blocks: Holds the samples.
        outlet: Where batches go.
        max_batch_bytes: Greatest payload of one batch.
        claim: Is told how much memory the batches take, before they take it.

    Attributes:
        most: How many batches to make next.
    """

    def __init__(
        self,
        contents: Contents,
        projection: Projection,
        *,
        blocks: Blocks,
        outlet: Outlet,
        max_batch_bytes: int,
        claim: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._claim = claim
        self._contents = contents
        self._blocks = blocks
        self._outlet = outlet
        self._most_bytes = min(contents.max_chunk_bytes, max_batch_bytes)
        self._at_once = AtOnce(contents.columns, projection)
        self._is_possible = contents.pipeline is None
        self._is_likely = True
        self.most = 1

    def note(self, *, payload_bytes: int, is_there: bool) -> None:
        """Choose how many batches to make next.

        Args:
            payload_bytes: Of the batch that was made last, here or otherwise.
            is_there: Whether all that it needed was in memory.
        """
        self._is_likely = _LEAST_BYTES <= payload_bytes <= self._most_bytes
        fitting = max(1, TOGETHER_BYTES // max(1, payload_bytes))
        is_able = KERNELS.module is not None and self._is_possible and self._is_likely
        self.most = min(2 * self.most, fitting) if is_there and is_able else 1

    def make(self, batches: Sequence[PlannedBatch]) -> Made | None:
        """Make batches that are alike (`PlannedBatch.is_alike`), or nothing."""
        kernels = KERNELS.module
        if kernels is None or not (self._is_possible and self._is_likely):
            return None
        found = batches[0].found.up_to(batches[-1].found)
        with self._blocks.lease(found.touched) as is_whole:
            if not is_whole:
                return None
            rows = self._blocks.rows(found.blocks, found.offsets)
            if not isinstance(rows, BlockRows):
                self._is_possible = False
                return None
            measured = self._at_once.measure(kernels, rows, len(batches))
            if not all(_LEAST_BYTES <= size <= self._most_bytes for size in measured.sizes):
                return None
            try:
                self._claim(sum(measured.sizes) + _ROW_BYTES * found.offsets.size)
            except ShortError:
                return None
            places = self._outlet.places()
            self._begin(batches, measured, places)
            targets = places.find()
            self._at_once.write(
                kernels,
                rows,
                self._contents.shown_ids(found.sample_ids),
                measured,
                heads=b"".join([head for head, *_ in targets]),
                targets=np.array(
                    [
                        (address, payload_bytes, len(head), hash_address)
                        for head, address, payload_bytes, hash_address in targets
                    ],
                    np.int64,
                ),
            )
        return Made(places.finish(), measured.sizes)

    def _begin(self, batches: Sequence[PlannedBatch], measured: Measured, places: Places) -> None:
        """Begin the batches; one head serves all, since they differ in little."""
        header = batch_header(batches[0])
        last: tuple[int, ...] = ()
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
