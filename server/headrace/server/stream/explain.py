"""Explain a batch: which shards and blocks hold its samples, and which of them are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from headrace.errors import BadArgumentError
from headrace.order import EndMode
from headrace.server.datasets.served import Part, Served
from headrace.server.plan.planned_batches import PlannedBatch, planned_stream
from headrace.server.plan.stream_request import ReadRequest, StreamSpec
from headrace.server.stream.get_batch_request import batch_spec
from headrace.server.stream.stage_plugs import Stages
from headrace.server.stream.stream_setup import (
    batch_header,
    stream_dealing,
    stream_pipeline,
    stream_start,
)
from headrace.v1 import shard_service_pb2 as pb

_MAX_SAMPLES = 131_072
# A default client accepts 4 MiB.
_MAX_RESPONSE_BYTES = 3 * 1024 * 1024


class _Place(Protocol):
    @property
    def shard(self) -> str: ...

    @property
    def offset(self) -> int: ...


@runtime_checkable
class _Placed(Protocol):
    """A dataset that knows the places of blocks in its shards, as our own does."""

    def block_place(self, block: int) -> _Place: ...


def explain(request: ReadRequest, served: Served, *, stages: Stages) -> pb.ExplainBatchResponse:
    """Explain the batch that a request would return.

    Raises:
        HeadraceError: See `batch_spec`.
        BadArgumentError: The batch is too large to explain.
    """
    served = stages.reading(request, served)
    spec = batch_spec(request, served, stages)
    _check_size(spec, served.readable.sample_count)
    finder = served.finder(spec.order)
    dealing = stream_dealing(spec, served, finder)
    # The companions of its samples do not belong to the batch.
    (planned,), _ = next(planned_stream(spec, finder, tally=served.tally, dealing=dealing))
    response = pb.ExplainBatchResponse(
        start=stream_start(spec, served, stream_pipeline(spec, served, request.stages, stages)),
        header=batch_header(planned),
    )
    _explain_rows(planned, served, response)
    if response.ByteSize() > _MAX_RESPONSE_BYTES:
        raise _too_large(f"{response.ByteSize()} bytes", f"{_MAX_RESPONSE_BYTES} bytes")
    return response


def _check_size(spec: StreamSpec, sample_count: int) -> None:
    count = spec.global_batch_size
    if spec.end is not EndMode.PAD:
        count = min(count, sample_count - spec.position)
    rows = -(-count // spec.world_size)
    if rows > _MAX_SAMPLES:
        raise _too_large(f"{rows} samples", f"{_MAX_SAMPLES} samples")


def _too_large(found: str, limit: str) -> BadArgumentError:
    return BadArgumentError(
        f"the explanation would have {found}, but at most {limit} are allowed; request the parts "
        "of a larger world_size",
        field="batch.global_batch_size",
    )


def _explain_rows(planned: PlannedBatch, served: Served, response: pb.ExplainBatchResponse) -> None:
    ids = served.shown_samples(planned.found.sample_ids)
    if ids.ndim > 1:
        response.dataset_indices.extend(ids[:, 0].tolist())
        ids = ids[:, 1]
    response.sample_ids.extend(ids.tolist())
    for part in served.parts(planned.found.sample_ids):
        for shard in _shards(part):
            shard.dataset_index = part.index
            response.shards.append(shard)


def _shards(part: Part) -> Iterator[pb.ExplainedShard]:
    shard_ends = np.cumsum(part.dataset.shard_sample_counts)
    shard = pb.ExplainedShard(shard=-1)
    for block in _blocks(part):
        ordinal = int(np.searchsorted(shard_ends, block.sample_ids[0], side="right"))
        if ordinal != shard.shard:
            if shard.blocks:
                yield shard
            shard = pb.ExplainedShard(shard=ordinal)
        if isinstance(part.dataset, _Placed):
            place = part.dataset.block_place(block.block)
            shard.name, block.offset = place.shard, place.offset
        shard.blocks.append(block)
    if shard.blocks:
        yield shard


def _blocks(part: Part) -> Iterator[pb.ExplainedBlock]:
    """Yield a dataset's blocks in storage order, each with its rows."""
    blocks, _ = part.dataset.locate(part.sample_ids)
    touched = np.unique(blocks)
    rows = np.argsort(blocks, kind="stable")
    edges = np.searchsorted(blocks[rows], touched)
    cached = part.source.is_cached(touched)
    stored_bytes = part.dataset.block_stored_bytes(touched)
    parts = np.split(rows, edges[1:]) if edges.size else []
    for index, own in enumerate(parts):
        yield pb.ExplainedBlock(
            block=int(touched[index]),
            stored_bytes=int(stored_bytes[index]),
            is_cached=bool(cached[index]),
            rows=part.places[own].tolist(),
            sample_ids=part.sample_ids[own].tolist(),
        )
