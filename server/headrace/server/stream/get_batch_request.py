"""Check requests for one batch or for samples by id, and fill in every default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, PositionPastEndError
from headrace.order import EpochPlan
from headrace.server.datasets.served import Served
from headrace.server.layout.wire_columns import WireColumn, choose_columns
from headrace.server.plan.stream_request import (
    DEFAULT_CHUNK_BYTES,
    ReadRequest,
    StageTitles,
    StreamSpec,
    check_chunk_bytes,
    check_payload,
    check_version,
    stream_spec,
)
from headrace.v1 import shard_service_pb2 as pb

# How many ids of the greatest length fit into a request of 1 MiB.
MAX_SAMPLE_IDS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class SamplesSpec:
    """A request for samples by id.

    Attributes:
        sample_ids: ``(samples,) int64``, in the requested order.
        columns: The columns to send, in order, including the server's own.
        max_chunk_bytes: The largest payload of one message.
    """

    sample_ids: NDArray[np.int64]
    columns: tuple[WireColumn, ...]
    max_chunk_bytes: int


def batch_spec(request: ReadRequest, served: Served, stages: StageTitles) -> StreamSpec:
    """Return the spec of the stream whose first batch is requested; it has at least one.

    Raises:
        HeadraceError: See `stream_spec`.
        PositionPastEndError: No global batch starts at this place.
        TokenDatasetChangedError: ``fingerprint`` belongs to another version.
    """
    readable = served.readable
    if request.fingerprint:
        check_version(request.dataset, request.fingerprint, readable)
    spec = stream_spec(request, readable, stages)
    plan = EpochPlan(readable.sample_count, spec.position, spec.global_batch_size, spec.end)
    if not plan.batch_count:
        raise PositionPastEndError(
            f"no batch of {spec.global_batch_size} starts at position {spec.position}; an epoch "
            f"has {readable.sample_count} samples",
            position=spec.position,
            sample_count=readable.sample_count,
        )
    return spec


def samples_spec(request: pb.GetSamplesRequest, served: Served) -> SamplesSpec:
    """Check a request for samples.

    Raises:
        BadArgumentError: A field is outside its range; ``metadata["field"]`` names it.
        ColumnNotFoundError: The dataset does not have a requested column.
        UnsupportedColumnError: A requested column cannot be sent.
        TokenDatasetChangedError: ``fingerprint`` belongs to another version.
    """
    readable = served.readable
    if served.has_pieces:
        raise BadArgumentError(
            f"the rows of {served.name!r} differ from epoch to epoch, so they have no ids; ask "
            f"{served.name.rpartition(':')[0]!r} for its documents",
            field="dataset",
        )
    if len(request.stages) > (not request.dataset):
        raise BadArgumentError(
            f"the request has {len(request.stages)} stages, but samples by id belong to no epoch "
            "and pass none; leave them out, except for the mixture in place of a dataset",
            field="stages",
        )
    if request.fingerprint:
        check_version(request.dataset, request.fingerprint, readable)
    columns = choose_columns(request.columns, readable.columns, readable.refused)
    if request.with_ids:
        columns += (readable.id_column,)
    max_chunk_bytes = request.max_chunk_bytes or DEFAULT_CHUNK_BYTES
    check_chunk_bytes(max_chunk_bytes)
    sample_ids = _sample_ids(request, served)
    check_payload(sample_ids.size, columns, readable, field="sample_ids")
    return SamplesSpec(sample_ids, columns, max_chunk_bytes)


def check_indices(indices: Sequence[int], *, count: int, dataset: str) -> None:
    """Refuse other indices of datasets than ids need.

    Raises:
        BadArgumentError: There is not one for each id of a mixture, or there is one for a dataset.
    """
    if len(indices) != (0 if dataset else count):
        raise BadArgumentError(
            f"dataset_indices has {len(indices)} indices for {count} ids; it must have one for "
            "each id of a mixture, and none for one dataset",
            field="dataset_indices",
        )


def stream_request(request: pb.GetBatchRequest) -> pb.ReadBatchesRequest:
    """Return the request for the stream: a stream's has all fields of a batch's, and others."""
    given: dict[str, Any] = {field.name: value for field, value in request.ListFields()}
    return pb.ReadBatchesRequest(epoch_count=1, **given)


def _sample_ids(request: pb.GetSamplesRequest, served: Served) -> NDArray[np.int64]:
    count = len(request.sample_ids)
    if not 1 <= count <= MAX_SAMPLE_IDS:
        raise BadArgumentError(
            f"sample_ids has {count} ids; it must have 1 to {MAX_SAMPLE_IDS}", field="sample_ids"
        )
    check_indices(request.dataset_indices, count=count, dataset=request.dataset)
    indices = np.array(request.dataset_indices, np.int64)
    return served.joined_ids(indices, np.array(request.sample_ids, np.int64))
