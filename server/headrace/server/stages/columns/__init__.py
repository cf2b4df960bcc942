"""Casts, and rows of one length."""

from __future__ import annotations

from headrace.server.stages.columns.casts import Cast, Pad, Stack
from headrace.server.stream.stage_plugs import StageKind, StagePlug
from headrace.v1 import columns_pb2 as pb


class Plug(StagePlug):
    """The stages of a server."""

    kinds = (
        StageKind("cast", pb.Cast, lambda options, _: Cast(options)),
        StageKind("pad", pb.Pad, lambda options, _: Pad(options)),
        StageKind(
            "stack",
            pb.Stack,
            lambda options, _: Stack(options),
            # More than an array of NumPy has.
            limits={"Stack.item_shape": 64},
        ),
    )
