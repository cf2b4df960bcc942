"""Upper bounds of a batch, whatever its server says: pure arithmetic.

A header comes before its payload, and memory is allocated by its numbers. So each number is checked
against these bounds first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.client.options.settings import DEFAULT_MAX_BATCH_BYTES
from headrace.errors import CallerError, StreamCorruptError
from headrace.payload import place_buffers
from headrace.v1 import shard_service_pb2 as pb


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

    @classmethod
    def of(cls, request: pb.ReadBatchesRequest | pb.GetBatchRequest, payload_bytes: int) -> Bounds:
        """Return the bounds of the batches that a request asks for."""
        wheres = _wheres_of(request)
        return cls(payload_bytes, request.global_batch_size, wheres, request.buckets)

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


def check_filters(wanted: Sequence[str], found: Sequence[pb.Dataset]) -> None:
    """Refuse servers that know no filters, since they would send all samples.

    Args:
        wanted: The expression for each dataset; empty for none.
        found: The server's descriptions of the datasets.

    Raises:
        CallerError: A filter was asked for, and the server does not confirm it.
    """
    for where, dataset in zip(wanted, found, strict=False):
        if where and not dataset.HasField("filter"):
            raise CallerError(
                f"the server ignored the filter requested for {dataset.name!r}: it is older than "
                "where=; update it, or leave where= out"
            )


def _wheres_of(request: pb.ReadBatchesRequest | pb.GetBatchRequest) -> tuple[str, ...]:
    """Return the filter of each dataset that a request reads; empty for none."""
    if request.HasField("mixture"):
        return tuple(dataset.where for dataset in request.mixture.datasets)
    return (request.where,)
