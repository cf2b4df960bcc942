"""How much of everything a request may repeat, checked before anything goes through it.

A field that repeats and is not in the table is a bug, which a test finds. Stages state their own
limits. How deep requests nest follows from their types, except for filters, which
`headrace.storage.where.syntax` limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.server.plan.list_limits import ListLimits
from headrace.server.stream.get_batch_request import MAX_SAMPLE_IDS
from headrace.server.stream.stage_plugs import MAX_STAGES

_MOST_COLUMNS = 16_384  # as many as a dataset may have that anybody reads (arbitrary)

LIMITS: Final[Mapping[str, int]] = {
    "ReadBatchesRequest.columns": _MOST_COLUMNS,
    "ReadBatchesRequest.stages": MAX_STAGES,
    "GetBatchRequest.columns": _MOST_COLUMNS,
    "GetBatchRequest.stages": MAX_STAGES,
    "GetSamplesRequest.columns": _MOST_COLUMNS,
    "GetSamplesRequest.sample_ids": MAX_SAMPLE_IDS,
    "GetSamplesRequest.dataset_indices": MAX_SAMPLE_IDS,
    "GetSamplesRequest.stages": MAX_STAGES,
    "GetDatasetRequest.stages": MAX_STAGES,
    "FindSamplesRequest.sample_ids": MAX_SAMPLE_IDS,
    "FindSamplesRequest.dataset_indices": MAX_SAMPLE_IDS,
}
"""The greatest length of each list, by its message and field."""

check_lengths: Final = ListLimits(LIMITS).check
"""Refuses a request with a list that is too long."""
