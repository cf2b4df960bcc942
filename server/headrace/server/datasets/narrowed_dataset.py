"""A dataset of which a stage of the order keeps some samples, before any are mixed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.order import OrderSpec, ShardTable, Skips, Subset, SubsetOrder, stages_of
from headrace.server.datasets.order_stage import OrderStage
from headrace.server.datasets.served_dataset import LoneSamples, ServedDataset
from headrace.server.plan.compiled import walk
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.plain_finder import PlainFinder, table_bytes
from headrace.server.plan.stream_request import Readable
from headrace.v1 import shard_service_pb2 as pb


class NarrowedDataset(LoneSamples, OrderStage):
    """The samples of a dataset that a stage keeps: a `Member`. Streams share the object.

    Args:
        base: The dataset.
        stage: The name of the stage in tokens.
        kept: The samples.
        table: The shard table of their order.

    Attributes:
        base: The dataset, which has all samples.
        kept: The samples that an epoch has.
        table: The shard table of their order.
        memory_bytes: Bytes in memory of the blocks with kept samples, approximately.
    """

    def __init__(self, base: ServedDataset, stage: str, kept: Subset, table: ShardTable) -> None:
        super().__init__(base)
        self.base, self.kept, self.table = base, kept, table
        self.memory_bytes = _memory_bytes_of(base, kept)
        self._readable = replace(
            base.readable, sample_count=kept.count, stages=stages_of(**{stage: kept.digest})
        )
        self._share_finders()

    @property
    def readable(self) -> Readable:
        """Return what requests are checked against."""
        return self._readable

    def _new_finder(self, spec: OrderSpec, skips: Skips | None) -> Finder:
        order = SubsetOrder(spec, self.table, self.kept, skips=skips, walk=walk)
        lane_bytes = table_bytes(spec, self.table, order.memory_samples)
        return PlainFinder(order, self.base.dataset, lane_bytes=lane_bytes)

    @property
    def classes(self) -> list[pb.ColumnClasses]:
        """Return the class names of its label columns."""
        return self.base.classes

    def version(self, fingerprint: str) -> ServedDataset:
        """Return the version with a fingerprint, with all samples; see `ServedDataset.version`."""
        return self.base.version(fingerprint)

    def candidates(self) -> tuple[str, ...]:
        """Return the fingerprints of all versions."""
        return self.base.candidates()

    def to_proto(self) -> pb.Dataset:
        """Return the wire's description of the dataset."""
        return self.base.to_proto()


def _memory_bytes_of(base: ServedDataset, kept: Subset) -> int:
    dataset, count = base.dataset, base.dataset.block_count
    edges = kept.before(
        np.append(dataset.block_first_samples(np.arange(count)), dataset.sample_count)
    )
    return base.memory_bytes * int(np.count_nonzero(np.diff(edges))) // max(1, count)
