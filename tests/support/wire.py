"""Messages of a `ReadBatches` stream, made by hand.

The encoder shares no code with the server.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.order import OrderSpec, Token, encode_token
from headrace.v1 import shard_service_pb2 as pb

FINGERPRINT = "0123456789abcdef" * 2
X = pb.Column(name="x", kind=pb.COLUMN_KIND_TENSOR, element_type=pb.ELEMENT_TYPE_INT64)
SAMPLE_ID = pb.Column(
    name="headrace.sample_id", kind=pb.COLUMN_KIND_TENSOR, element_type=pb.ELEMENT_TYPE_INT64
)


def pack(buffers: Sequence[bytes]) -> bytes:
    """Lay buffers at multiples of 64 bytes, as docs/protocol.md says."""
    payload = bytearray()
    for buffer in buffers:
        payload.extend(bytes(-len(payload) % 64))
        payload.extend(buffer)
    return bytes(payload)


def token_at(epoch: int, position: int, *, size: int = 4, step: int = 0) -> bytes:
    """A token of the hand-made dataset."""
    return encode_token(
        Token(
            fingerprint=FINGERPRINT,
            spec=OrderSpec(unit=size),
            epoch=epoch,
            position=position,
            global_batch_size=size,
            step=step,
            sample_count=step * size,
        )
    )


def start_message(columns: Sequence[pb.Column] = (X,)) -> pb.ReadBatchesResponse:
    """The first message of a stream."""
    return pb.ReadBatchesResponse(
        start=pb.StreamStart(
            dataset=pb.Dataset(name="d", fingerprint=FINGERPRINT, sample_count=12),
            columns=columns,
            global_batch_size=4,
        )
    )


def batch_messages(
    buffers: Sequence[bytes],
    *,
    token: bytes,
    sample_count: int,
    epoch: int = 0,
    position: int = 0,
    step: int = 0,
    chunk_bytes: int = 1 << 20,
) -> list[pb.ReadBatchesResponse]:
    """One batch, cut into chunks."""
    payload = pack(buffers)
    header = pb.BatchHeader(
        epoch=epoch,
        step=step,
        position=position,
        sample_count=sample_count,
        global_sample_count=sample_count,
        buffer_bytes=[len(buffer) for buffer in buffers],
        payload_bytes=len(payload),
        payload_xxh3=xxhash.xxh3_64_intdigest(payload),
        resume_token=token,
    )
    messages = [pb.ReadBatchesResponse(batch=header, payload=payload[:chunk_bytes])]
    messages += [
        pb.ReadBatchesResponse(
            chunk=pb.Chunk(payload_offset=start), payload=payload[start : start + chunk_bytes]
        )
        for start in range(chunk_bytes, len(payload), chunk_bytes)
    ]
    return messages


def values(epoch: int, position: int, size: int) -> NDArray[np.int64]:
    """What the hand-made dataset holds at some positions."""
    return np.arange(position, position + size, dtype=np.int64) + 1000 * epoch


def epoch_messages(
    epoch: int, position: int = 0, *, sample_count: int = 12, size: int = 4
) -> Iterator[pb.ReadBatchesResponse]:
    """The rest of an epoch of the hand-made dataset, with its end."""
    sent = range(position, sample_count, size)
    for start in sent:
        last = start + size >= sample_count
        step = (epoch * sample_count + start) // size
        after = (epoch + 1, 0) if last else (epoch, start + size)
        yield from batch_messages(
            [values(epoch, start, size).tobytes()],
            token=token_at(*after, size=size, step=step + 1),
            sample_count=size,
            epoch=epoch,
            position=start,
            step=step,
        )
    yield pb.ReadBatchesResponse(
        epoch_end=pb.EpochEnd(
            epoch=epoch,
            batch_count=len(sent),
            sample_count=len(sent) * size,
            resume_token=token_at(epoch + 1, 0, size=size),
        )
    )
