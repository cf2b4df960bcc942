"""A server that lies: it passes the streams of an honest one on, but for one batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import numpy as np
import xxhash

from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc
from support.scripted_server import scripted_server

Batches = Iterator[pb.ReadBatchesResponse]
Lie = Callable[[Batches], Batches]

_LIED_ABOUT = 3


def tell_the_truth(batches: Batches) -> Batches:
    """Change nothing."""
    yield from batches


def lose(batches: Batches) -> Batches:
    """Leave a batch out."""
    for number, batch in enumerate(batches):
        if number != _LIED_ABOUT:
            yield batch


def repeat(batches: Batches) -> Batches:
    """Send a batch twice."""
    for number, batch in enumerate(batches):
        yield batch
        if number == _LIED_ABOUT:
            yield batch


def exchange(batches: Batches) -> Batches:
    """Send a batch after the one that follows it."""
    for number, batch in enumerate(batches):
        if number == _LIED_ABOUT:
            later = batch
        else:
            yield batch
        if number == _LIED_ABOUT + 1:
            yield later


def alter(batches: Batches) -> Batches:
    """Exchange two samples of a batch, and give it the checksum that fits."""
    for number, batch in enumerate(batches):
        yield _altered(batch) if number == _LIED_ABOUT else batch


def _altered(message: pb.ReadBatchesResponse) -> pb.ReadBatchesResponse:
    changed = pb.ReadBatchesResponse.FromString(message.SerializeToString())
    payload = np.frombuffer(bytearray(changed.payload), dtype=np.uint8)
    size = message.batch.buffer_bytes[-1]
    ids = payload[payload.size - size :].view(np.int64)
    ids[[0, 1]] = ids[[1, 0]]
    changed.payload = payload.tobytes()
    changed.batch.payload_xxh3 = xxhash.xxh3_64_intdigest(changed.payload)
    return changed


def _is_batch(message: pb.ReadBatchesResponse) -> bool:
    return bool(message.WhichOneof("event") == "batch")


@contextmanager
def liar(honest: str, lie: Lie, *, sample_count: int) -> Iterator[str]:
    """Run one; gives its address.

    Args:
        honest: Address of the server whose streams it passes on, each batch in one message.
        lie: What becomes of the batches of each stream.
        sample_count: Samples of the dataset.
    """

    def script(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del context
        request.max_group_bytes = 0
        with grpc.insecure_channel(honest) as channel:
            stream = rpc.ShardServiceStub(channel).ReadBatches(request, timeout=240)
            for message in stream:
                if _is_batch(message):
                    yield from lie(itertools.chain([message], filter(_is_batch, stream)))
                    return
                yield message  # what comes before the first batch

    with scripted_server(script, sample_count=sample_count) as service:
        yield service.address
