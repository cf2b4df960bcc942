"""How much of everything a request may repeat, checked before anything goes through it.

A field that repeats and is not in the table is a bug, which a test finds. Stages state their own
limits. How deep requests nest follows from their types, except for filters, which
`headrace.storage.where.syntax` limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.server.plan.list_limits import MAX_DATASETS, MAX_PIECES, ListLimits
from headrace.server.plan.skip_lists import MAX_SENT_IDS
from headrace.server.stream.get_batch_request import MAX_SAMPLE_IDS
from headrace.server.stream.stage_plugs import MAX_STAGES

_MOST_COLUMNS = 16_384  # as many as a dataset may have that anybody reads (arbitrary)
_MOST_SPEEDS = 65_536  # one for each rank

LIMITS: Final[Mapping[str, int]] = {
    "ReadBatchesRequest.columns": _MOST_COLUMNS,
    "ReadBatchesRequest.stages": MAX_STAGES,
    "GetBatchRequest.columns": _MOST_COLUMNS,
    "GetBatchRequest.stages": MAX_STAGES,
    "GetSamplesRequest.columns": _MOST_COLUMNS,
    "GetSamplesRequest.sample_ids": MAX_SAMPLE_IDS,
    "GetSamplesRequest.dataset_indices": MAX_SAMPLE_IDS,
    "GetSamplesRequest.datasets": MAX_DATASETS,
    "FindSamplesRequest.sample_ids": MAX_SAMPLE_IDS,
    "FindSamplesRequest.dataset_indices": MAX_SAMPLE_IDS,
    "Mixture.datasets": MAX_DATASETS,
    "Mixture.schedule": MAX_PIECES,
    "SchedulePiece.weights": MAX_DATASETS,
    "SkipList.sample_ids": MAX_SENT_IDS,
    "Deal.speeds": _MOST_SPEEDS,
}
"""The greatest length of each list, by its message and field."""

check_lengths: Final = ListLimits(LIMITS).check
"""Refuses a request with a list that is too long."""
