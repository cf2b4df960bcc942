"""Streams of a dataset through one cache, without gRPC."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from headrace.server.batch.targets import Outlet
from headrace.server.cache.block_cache import BlockCache
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.settings.server_config import ServerConfig
from headrace.server.shares import Budget, Share
from headrace.server.stream.batch_stream import BatchStream, StreamLimits
from headrace.server.stream.stage_plugs import open_stages
from headrace.server.stream.stream_setup import stream_contents
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.stream_counts import StreamTally
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb


class Streams:
    """Makes streams of one dataset.

    Attributes:
        cache: What they share.
        served: The dataset.
    """

    def __init__(self, cache: BlockCache, served: ServedDataset) -> None:
        self.cache = cache
        self.served = served
        self._stages = open_stages(ServerConfig(datasets={"d": "/d"}), Metrics())

    def open(
        self,
        request: pb.ReadBatchesRequest,
        outlet: Outlet | None = None,
        observer: StreamTally | None = None,
        share: Share | None = None,
    ) -> BatchStream:
        """Return a stream that plans no batch before it is needed."""
        limits = StreamLimits(
            heartbeat_s=5,
            store_timeout_s=30,
            stage_timeout_s=60.0,
            lifetime_s=0,
            max_batch_bytes=1 << 27,
            prefetch_bytes=lambda: 0,
        )
        read = self._stages.of_batches(request)
        contents = stream_contents(read, self.served, self._stages)
        return BatchStream(
            contents,
            dataset=self.served.name,
            blocks=contents.blocks(self.cache),
            limits=limits,
            observer=observer or StreamTally(Metrics().streams, self.served.name, None),
            outlet=outlet,
            share=share,
        )

    def sent(self, request: pb.ReadBatchesRequest) -> Generator[bytes, None, None]:
        """Yield the messages of a stream, each of which has left when the next is asked for."""
        share = Share(Budget(1 << 30), message_bytes=1 << 21)
        with closing(self.open(request, share=share).messages()) as messages:
            for message in messages:
                yield message
                share.sent(len(message))


@contextmanager
def streams_of(url: str, *, cache_bytes: int = 1 << 27) -> Iterator[Streams]:
    """Open a dataset with a cache of its own."""
    cache = BlockCache(cache_bytes, fetch_threads=2, observer=Metrics())
    with open_dataset(url) as dataset:
        yield Streams(cache, ServedDataset("small", dataset, cache=cache, max_batch_bytes=1 << 27))
    cache.close()
