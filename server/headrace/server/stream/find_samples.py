"""Find the batches, ranks and rows of an epoch that hold given samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.errors import BadArgumentError
from headrace.order import EndMode, EpochPlan, find_rows
from headrace.server.datasets.served import Served
from headrace.server.plan.stream_request import ReadRequest, StreamSpec
from headrace.server.stream.get_batch_request import batch_spec, check_indices
from headrace.server.stream.stage_plugs import Stages
from headrace.server.stream.stream_setup import stream_dealing
from headrace.v1 import shard_service_pb2 as pb

# A default client accepts 4 MiB, and a row takes at most 60 bytes.
_MAX_ROWS = 3 * 1024 * 1024 // 60


def find_samples(
    request: pb.FindSamplesRequest, read: ReadRequest, served: Served, *, stages: Stages
) -> pb.FindSamplesResponse:
    """Find samples in the rest of an epoch.

    Args:
        request: The request.
        read: What it asks to read.
        served: The dataset or mixture that it names.
        stages: The stages of the server.

    Raises:
        HeadraceError: See `batch_spec`.
        BadArgumentError: A sample does not exist, or there would be too many rows.
    """
    served = stages.reading(read, served)
    spec = batch_spec(read, served, stages)
    count = len(request.sample_ids)
    most = served.most_looked_up
    if not 1 <= count <= most:
        raise BadArgumentError(
            f"sample_ids has {count} ids; it must have 1 to {most}", field="sample_ids"
        )
    check_indices(request.dataset_indices, count=count, dataset=read.dataset)
    plan = EpochPlan(served.readable.sample_count, spec.position, spec.global_batch_size, spec.end)
    _check_copies(plan)
    response = pb.FindSamplesResponse()
    for row in _rows(request, served, spec, plan):
        if len(response.rows) == _MAX_ROWS:
            raise _too_many("the samples are in more", "ask for fewer samples at a time")
        response.rows.append(row)
    return response


def _check_copies(plan: EpochPlan) -> None:
    """Refuse an epoch in which a single position appears in too many rows."""
    copies, last = 1, (plan.sample_count - plan.base) % plan.global_batch_size
    if plan.end is EndMode.PAD and last:
        copies = -(-plan.global_batch_size // last)
    if copies > _MAX_ROWS:
        raise _too_many(f"one sample may be in {copies}", "ask with a smaller global batch")


def _too_many(found: str, advice: str) -> BadArgumentError:
    return BadArgumentError(
        f"{found} rows, but an answer has at most {_MAX_ROWS}: {advice}",
        field="sample_ids",
    )


def _rows(
    request: pb.FindSamplesRequest, served: Served, spec: StreamSpec, plan: EpochPlan
) -> Iterator[pb.FoundRow]:
    sample_ids = served.joined_ids(
        np.array(request.dataset_indices, np.int64), np.array(request.sample_ids, np.int64)
    )
    finder = served.finder(spec.order)
    dealing = stream_dealing(spec, served, finder)
    for index, positions in enumerate(finder.positions(spec.epoch, sample_ids)):
        for position in positions.tolist():
            found = (
                find_rows(plan, position, world_size=spec.world_size)
                if dealing is None
                else dealing.rows(spec.epoch, plan, position)
            )
            for row in found:
                yield pb.FoundRow(
                    sample=index,
                    epoch=spec.epoch,
                    position=position,
                    step=spec.step + row.index,
                    rank=row.rank,
                    row=row.row,
                )
