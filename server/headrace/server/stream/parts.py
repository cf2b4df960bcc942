"""What the parts of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.server.cache.block_cache import BlockCache
from headrace.server.datasets.catalog import Catalog
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.open_streams import OpenStreams
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of one server share.

    Attributes:
        config: The settings.
        cache: The cache of blocks.
        streams: The open streams.
        metrics: Counts events.
        tracing: Records streams that have ended; None for no tracing.
        catalog: The served datasets.
    """

    config: ServerConfig
    cache: BlockCache
    streams: OpenStreams
    metrics: Metrics
    tracing: Tracing | None
    catalog: Catalog = field(default_factory=Catalog)
