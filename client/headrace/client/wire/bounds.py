"""Upper bounds of a batch, whatever its server says: pure arithmetic.

A header comes before its payload, and memory is allocated by its numbers. So each number is checked
against these bounds first.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.options.settings import DEFAULT_MAX_BATCH_BYTES
from headrace.client.options.where import check_filters
from headrace.errors import CallerError, StreamCorruptError
from headrace.payload import place_buffers
from headrace.v1 import shard_service_pb2 as pb

_MOST_DIMENSIONS = 32
"""NumPy's limit for decades; now it is 64."""
_MOST_ITEM_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds of one batch of a stream.

    Attributes:
        payload_bytes: Most bytes of its payload, >= 1.
        sample_count: Most samples, and rows if the batch has other rows, >= 1.
        wheres: The requested filter of each dataset; empty for none.
        buckets: The requested length buckets; 0 for none, or for a token's.
    """

    payload_bytes: int = DEFAULT_MAX_BATCH_BYTES
    sample_count: int = (1 << 31) - 1
    wheres: tuple[str, ...] = ()
    buckets: int = 0

    def check_start(self, start: pb.StreamStart) -> None:
        """Refuse a stream whose server ignores filters or buckets.

        Raises:
            CallerError: The server ignores them.
        """
        check_filters(self.wheres, start.datasets or (start.dataset,))
        if self.buckets and start.buckets != self.buckets:
            raise CallerError(
                f"buckets={self.buckets} was requested, but the server says {start.buckets}: it is "
                "older than buckets=; update it, or leave buckets= out"
            )

    def refuse_payload(self, header: pb.BatchHeader) -> None:
        """Raise the error for a payload outside the bounds.

        Raises:
            StreamCorruptError: Always. If the header is consistent, a retry would not help, and
                ``metadata`` has the field ``max_batch_bytes``.
        """
        size = header.payload_bytes
        if size > self.payload_bytes and size == place_buffers(header.buffer_bytes)[1]:
            raise StreamCorruptError(
                f"a batch has {size} bytes, but this client accepts at most {self.payload_bytes}; "
                f"give Transport(max_batch_bytes={size}) if you trust the server, or make batches "
                "smaller with batch_size or columns",
                field="max_batch_bytes",
            )
        raise StreamCorruptError(
            f"a batch has a payload of {size} bytes according to its header, but its buffers need "
            f"{place_buffers(header.buffer_bytes)[1]}; expected the two to be equal, in [0, "
            f"{self.payload_bytes}] (max_batch_bytes)"
        )

    def refuse_samples(self, header: pb.BatchHeader) -> None:
        """Raise the error for counts outside the bounds.

        Raises:
            StreamCorruptError: Always.
        """
        raise StreamCorruptError(
            f"a batch has {header.sample_count} samples, {header.pad_count} of them pads, "
            f"according to its header; expected [0, {self.sample_count}] samples, at most a global "
            "batch, and no more pads than samples"
        )


def check_item_shape(column: pb.Column, item_bytes: int) -> tuple[int, ...]:
    """Return the shape of a column's items.

    Args:
        column: The column as received.
        item_bytes: Bytes of an element.

    Raises:
        StreamCorruptError: No array can have it.
    """
    shape = tuple(column.item_shape)
    size = item_bytes
    for length in shape:
        size *= max(1, length)
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0 or size > _MOST_ITEM_BYTES:
        raise StreamCorruptError(
            f"column {column.name[:100]!r} has items of shape {shape[:_MOST_DIMENSIONS]}; expected "
            f"up to {_MOST_DIMENSIONS} lengths >= 0 and at most {_MOST_ITEM_BYTES} bytes",
            column=column.name[:100],
        )
    return shape
