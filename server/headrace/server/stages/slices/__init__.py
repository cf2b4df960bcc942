"""Parts of sequences, for context-parallel ranks, and columns for stages of a pipeline."""

from __future__ import annotations

from headrace.server.stages.slices.cut_sequences import Slice
from headrace.server.stream.stage_plugs import StageKind, StagePlug
from headrace.v1 import slices_pb2 as pb

# A request has at most as many columns (arbitrary).
_MOST_COLUMNS = 256


class Plug(StagePlug):
    """The stage of a server."""

    kinds = (
        StageKind(
            "slice",
            pb.Slice,
            lambda options, _: Slice(options),
            limits={
                "Slice.columns": _MOST_COLUMNS,
                "Slice.fills": _MOST_COLUMNS,
                "Slice.without": _MOST_COLUMNS,
            },
        ),
    )
