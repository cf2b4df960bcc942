"""Upper bounds of a batch, whatever its server says: pure arithmetic.

A header comes before its payload, and memory is allocated by its numbers. So each number is checked
against these bounds first.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.options.settings import DEFAULT_MAX_BATCH_BYTES
from headrace.errors import StreamCorruptError
from headrace.payload import place_buffers
from headrace.v1 import shard_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds of one batch of a stream.

    Attributes:
        payload_bytes: Most bytes of its payload, >= 1.
        sample_count: Most samples, and rows if the batch has other rows, >= 1.
    """

    payload_bytes: int = DEFAULT_MAX_BATCH_BYTES
    sample_count: int = (1 << 31) - 1

    @classmethod
    def of(cls, request: pb.ReadBatchesRequest | pb.GetBatchRequest, payload_bytes: int) -> Bounds:
        """Return the bounds of the batches that a request asks for."""
        return cls(payload_bytes, request.global_batch_size)

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
