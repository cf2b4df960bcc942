"""Casts, and rows of one length."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.server.settings.server_config import ServerConfig
from headrace.server.stages.columns.casts import Cast, Pad, Stack
from headrace.server.stream.stage_plugs import StageKind, StagePlug
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb

_KINDS = (
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


def open_stages(config: ServerConfig, metrics: Metrics) -> StagePlug:
    """Return the stages of a server."""
    del config, metrics
    return StagePlug(_KINDS)


def check(config: ServerConfig) -> Iterator[str]:
    """Yield nothing: there are no settings."""
    del config
    yield from ()
