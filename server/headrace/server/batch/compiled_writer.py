"""Write batches by compiled loops, from the columns of pinned blocks to their targets.

Long calls release Python's lock, and a few batches share each call. A batch of a megabyte is little
work for compiled loops but much for the Python code around them, which each batch evicts from the
processor's caches: that code then takes 240 us, instead of 40 us in a tight loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import InternalError
from headrace.payload import OFFSET_BYTES, SAMPLE_ID_COLUMN
from headrace.server.batch.batch_writer import ROW_BYTES, SPAN_BYTES, Measured, Read
from headrace.server.batch.payload_out import write_hash, write_whole
from headrace.server.batch.targets import Parts, Target, writable
from headrace.server.cache.gather import BlockRows
from headrace.server.kernels.loader import LOOPS
from headrace.server.layout.block_layout import BlockLayout, Projection
from headrace.server.layout.wire_columns import WireColumn

# The xxhash library hashes shorter payloads.
_LEAST_HASHED_BYTES = 241

_ZERO = np.zeros(1, np.int64)


class CompiledWriter:
    """Writes the batches of one stream; see `headrace.server.batch.batch_writer`.

    Args:
        columns: The columns in the requested order, including the server's own.
        layout: The layout of the blocks that hold the others.
    """

    def __init__(self, columns: Sequence[WireColumn], layout: BlockLayout) -> None:
        self._columns, self._layout = columns, layout
        fields: list[tuple[int, int, int, int, int, int]] = []
        ragged: list[tuple[int, int, int]] = []
        # Bytes for each row and extra bytes, or the number of a ragged column.
        buffers: list[tuple[int, int]] = []
        self._id_buffer = -1
        packed_bytes = layout.parts[0].row_bytes
        for column in columns:
            if column.name == SAMPLE_ID_COLUMN:
                self._id_buffer = len(buffers)
                buffers.append((column.item_bytes, 0))
                continue
            entry = layout.by_name[column.name]
            if entry.valid_offset >= 0:
                fields.append((0, packed_bytes, packed_bytes, entry.valid_offset, 1, len(buffers)))
                buffers.append((1, 0))
            if not column.is_tensor:
                ragged.append((entry.offset, column.dtype.itemsize, len(buffers)))
                buffers += ((OFFSET_BYTES, OFFSET_BYTES), (0, -len(ragged)))
                continue
            if column.item_bytes:
                part = layout.parts[entry.part]
                base_unit = part.row_bytes if part.aligned else 1
                where = (entry.part, part.row_bytes, base_unit, entry.offset)
                fields.append((*where, column.item_bytes, len(buffers)))
            buffers.append((column.item_bytes, 0))
        # Columns of one part come together, so that their rows are looked up once.
        fields.sort(key=lambda field: field[0])
        self._packed_bytes = packed_bytes
        self.row_bytes = packed_bytes + ROW_BYTES + SPAN_BYTES * len(ragged)
        self._fields = np.array(fields, np.int64).reshape(-1, 6)
        self._ragged = np.array(ragged, np.int64).reshape(-1, 3)
        self._buffers = np.array(buffers, np.int64).reshape(-1, 2)
        self._spans = np.empty((len(ragged), 3, 0), np.int64)
        # By rows and batches: without ragged columns, equal numbers give equal layouts.
        self._measured: dict[tuple[int, int], Measured] = {}

    @cached_property
    def projection(self) -> Projection:
        """The columns of the dataset that it reads."""
        names = [column.name for column in self._columns if column.name != SAMPLE_ID_COLUMN]
        return self._layout.projection(names)

    def measure(self, rows: BlockRows, read: Read, batch_count: int) -> Measured:
        """Lay out batches with equal numbers of rows."""
        del read
        row_count = rows.blocks.size
        key = (row_count, batch_count)
        if (known := self._measured.get(key)) is not None:
            return known
        if self._spans.shape[2] != row_count + 1:
            self._spans = np.empty((len(self._ragged), 3, row_count + 1), np.int64)
        starts, lengths = np.empty((2, batch_count, len(self._buffers)), np.int64)
        is_found = LOOPS.measure_batches(
            rows.memory.array,
            rows.slot_of,
            rows.bases,
            rows.blocks,
            rows.offsets,
            self._packed_bytes,
            self._ragged,
            self._buffers,
            self._spans,
            starts,
            lengths,
        )
        _check(is_found=is_found)
        sizes = (starts[:, -1:] + lengths[:, -1:]).sum(axis=1).tolist()
        if self._ragged.size:
            buffer_bytes = list(map(tuple, lengths.tolist()))
        else:
            buffer_bytes = [tuple(lengths[0].tolist())] * batch_count
        measured = Measured(starts, lengths, buffer_bytes, sizes)
        if not self._ragged.size:
            self._measured[key] = measured
        return measured

    def write(
        self,
        rows: BlockRows,
        sample_ids: NDArray[np.int64],
        measured: Measured,
        targets: Sequence[Target],
    ) -> None:
        """Write the batches that were measured last, with their headers and hashes."""
        ids = sample_ids.reshape(-1).view(np.uint8)
        if (parts := targets[0][-1]) is not None:
            # A single batch, because batches that are made together fit in one message each.
            self._write_parts(rows, ids, measured, parts)
            return
        heads, table, short = placed(targets, measured.sizes)
        is_found = LOOPS.write_batches(
            rows.memory.array,
            rows.slot_of,
            rows.bases,
            rows.blocks,
            rows.offsets,
            self._fields,
            self._ragged,
            self._spans,
            measured.starts,
            measured.lengths,
            ids,
            self._id_buffer,
            heads,
            table,
        )
        _check(is_found=is_found)
        if short:
            hash_short(short)

    def _write_parts(
        self, rows: BlockRows, ids: NDArray[np.uint8], measured: Measured, target: Parts
    ) -> None:
        """Write a batch of several messages, buffer after buffer."""
        if target.parts[0].size % LOOPS.BLOCK_BYTES:
            # Hashing while writing works only in whole blocks.
            write = partial(self.write, rows, ids.view(np.int64), measured)
            write_whole(target, measured.sizes[0], write)
            return
        out = CompiledParts(target, measured.sizes[0])
        starts, lengths = measured.starts[0].tolist(), measured.lengths[0].tolist()
        memory, gathered = rows.memory.array, self._gather_narrow(rows, lengths)
        wide = {int(field[5]): field for field in self._fields if field[0]}
        ragged = {int(buffer): column for column, (_, _, buffer) in enumerate(self._ragged)}
        for buffer, start in enumerate(starts):
            if buffer == self._id_buffer:
                out.put(start, ids)
            elif buffer in wide:
                part, row_bytes, unit, *_ = wide[buffer].tolist()
                bases = rows.bases[part][rows.slot_of[rows.blocks]]
                places = bases * unit + rows.offsets * row_bytes
                out.put_spans(start, memory, places, np.full(places.size, row_bytes, np.int64))
            elif buffer in ragged:
                edges = self._spans[ragged[buffer], 2]
                item_bytes = int(self._ragged[ragged[buffer], 1])
                out.put(start, (edges // item_bytes).view(np.uint8))
            elif buffer - 1 in ragged:
                places, sizes, _ = self._spans[ragged[buffer - 1]]
                out.put_spans(start, memory, places[:-1], sizes[:-1])
            elif lengths[buffer]:
                out.put(start, next(gathered))
        out.end()

    def _gather_narrow(
        self, rows: BlockRows, lengths: Sequence[int]
    ) -> Iterator[NDArray[np.uint8]]:
        """Gather all columns of packed rows, and yield them in the order of their buffers."""
        narrow = self._fields[self._fields[:, 0] == 0]
        sizes = [lengths[buffer] for buffer in narrow[:, 5].tolist()]
        ends = np.cumsum(sizes, dtype=np.int64)
        fields = narrow.copy()
        fields[:, 5] = ends - sizes
        scratch = np.empty(sum(sizes), np.uint8)
        is_found = LOOPS.gather(
            rows.memory.array, rows.slot_of, rows.bases, rows.blocks, rows.offsets, fields, scratch
        )
        _check(is_found=is_found)
        return (scratch[end - size : end] for size, end in zip(sizes, ends.tolist(), strict=True))


def placed(
    targets: Sequence[Target], sizes: Sequence[int]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], Sequence[Target]]:
    """Return the targets of batches in one piece each, as compiled loops take them.

    Args:
        targets: The target of each batch.
        sizes: Bytes of each payload.

    Returns:
        The prefixes of all payloads, end to end. A row for each batch: the address of the payload,
        its bytes, the bytes of its prefix, and the address for its hash, 0 for none. The targets to
        call `hash_short` with.
    """
    heads = b"".join([head for head, *_ in targets])
    is_short = min(sizes) < _LEAST_HASHED_BYTES
    table = [
        (address, size, len(head), 0 if is_short else hash_at)
        for head, address, size, hash_at, _ in targets
    ]
    return np.frombuffer(heads, np.uint8), np.array(table, np.int64), targets if is_short else ()


def hash_short(targets: Sequence[Target]) -> None:
    """Write the hashes that the compiled loops do not write."""
    for _, address, size, hash_at, _ in targets:
        if hash_at:
            found = xxhash.xxh3_64_intdigest(writable(address, size).data)
            write_hash(writable(hash_at, 8), found)


class CompiledParts:
    """A payload in several parts, hashed while it is written, 64 KiB at a time.

    Hashing a whole part of 2 MiB would read it from the processor's last cache. Parts are written
    in order; all except for the last have the same size, a multiple of a hash block.
    """

    def __init__(self, target: Parts, size: int) -> None:
        self._target = target
        self._size = size
        self._part_bytes = target.parts[0].size
        addresses = np.array([part.ctypes.data for part in target.parts], np.int64)
        self._place = (addresses, self._part_bytes, size)
        self._sums = np.empty(8, np.uint64)
        LOOPS.begin_hash(self._sums)
        self._hashed = np.zeros(1, np.int64)
        self._end = 0

    def put(self, start: int, content: NDArray[np.uint8]) -> None:
        """Write the content of one buffer, and zeros before it."""
        self._copy(content, _ZERO, np.array([content.size]), start=start)

    def put_spans(
        self,
        start: int,
        memory: NDArray[np.uint8],
        places: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Write spans of memory back to back, and zeros before them.

        Raises:
            InternalError: Some lie outside the memory, or there is no room for them.
        """
        self._copy(memory, places, lengths, start=start)

    def end(self) -> None:
        """Write the hash; call it when the whole payload is written."""
        LOOPS.hash_parts(*self._place, self._size, self._sums, self._hashed)
        # The last block, with the bytes before it that the last stripe may need.
        hashed = int(self._hashed[0])
        start = max(0, hashed - LOOPS.BLOCK_BYTES)
        first, left_out = divmod(start, self._part_bytes)
        parts = self._target.parts[first:]
        tail = np.concatenate([parts[0][left_out:], *parts[1:]])
        found = LOOPS.end_hash(tail, hashed - start, self._size, self._sums)
        write_hash(self._target.hash_to, int(found))

    def _copy(
        self,
        memory: NDArray[np.uint8],
        places: NDArray[np.int64],
        lengths: NDArray[np.int64],
        *,
        start: int,
    ) -> None:
        if self._end < start:
            gap = np.zeros(start - self._end, np.uint8)
            self._copy(gap, _ZERO, np.array([gap.size]), start=self._end)
        self._end = start + int(lengths.sum())
        is_found = LOOPS.copy_spans_to_parts(
            memory,
            np.ascontiguousarray(places),
            np.ascontiguousarray(lengths),
            *self._place,
            start,
            self._end,
            self._sums,
            self._hashed,
        )
        _check(is_found=is_found)


def _check(*, is_found: bool) -> None:
    if not is_found:
        raise InternalError("the tables of the cache point outside of it; restart the server")


def sample_writer(columns: Sequence[WireColumn]) -> Callable[[BlockLayout], CompiledWriter]:
    """Return what makes the writer of a stream of samples, for blocks of a layout.

    Args:
        columns: The columns of its batches, including the server's own.
    """
    return partial(CompiledWriter, columns)
