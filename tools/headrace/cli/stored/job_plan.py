"""Calculate what the servers of a job need, by the formulas of docs/sizing.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import BadArgumentError
from headrace.order import OrderSpec
from headrace.storage import OpenDataset

if TYPE_CHECKING:
    from headrace.bench import ServingCost

_MIB = 1 << 20
_IDLE_BYTES, _READS_BYTES, _STREAM_BYTES = 195 * _MIB, 192 * _MIB, 4 * _MIB
_MESSAGES_BYTES = 2 * 3 * _MIB
_CONTAINER = 1.1
_HEADERS = 1.05
_PACED = 1.2
"""What a batch costs beside one that is read as fast as possible (bench_plan.py)."""
_BUSY = 0.75
"""How much of its processors and its network a replica should use at most."""
_CACHE = 17 / 16
_MOST_REPLICAS = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, the machines that serve it, and how long to measure.

    Attributes:
        ranks: Number of ranks.
        step_ms: Milliseconds that a training step takes.
        batch_size: Samples per batch of a rank.
        run_bytes: Bytes of neighbouring samples to read together.
        shuffle_bytes: Bytes of samples to shuffle together.
        cores: Processors of a replica, as fast as those here.
        network_gbit: Network of a replica in Gbit/s.
        streams: Open streams of a replica (max_streams).
        get_price: Price of a million reads of the store.
        seconds: Duration of each of the four measurements.
    """

    ranks: int
    step_ms: float
    batch_size: int = 32
    run_bytes: int = 2 << 20
    shuffle_bytes: int = 2 << 30
    cores: int = 4
    network_gbit: float = 10.0
    streams: int = 128
    get_price: float = 0.4
    seconds: float = 3.0

    @property
    def order(self) -> OrderSpec:
        """The order of its samples."""
        return OrderSpec(
            run_bytes=self.run_bytes,
            shuffle_bytes=self.shuffle_bytes,
            unit=self.ranks * self.batch_size,
        )


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What the servers of a job need.

    Attributes:
        replicas: Number of replicas, one of which may be away.
        cores: Processors that all replicas use together.
        sent_bytes_per_s: Bytes a second to the trainers.
        stored_bytes_per_s: Bytes a second from the store, after the first epoch.
        cache_bytes: The setting of each replica.
        memory_bytes: Memory of each replica's container.
        epoch_s: Seconds that an epoch takes.
        epoch_reads: Reads of the store in an epoch; if all is cached, in the first.
        epoch_price: Their price.
        first_batch_ms: Milliseconds until the first batch of a stream.
        is_cached: Whether the cache holds all data, so that only the first epoch reads the store.
        bottleneck: What would become too small first: processors, network, streams or store.
        use: How much of each would be used, with one replica away; more than 1 is too much.
    """

    replicas: int
    cores: float
    sent_bytes_per_s: float
    stored_bytes_per_s: float
    cache_bytes: int
    memory_bytes: int
    epoch_s: float
    epoch_reads: int
    epoch_price: float
    first_batch_ms: float
    is_cached: bool
    bottleneck: str
    use: dict[str, float]


def plan_job(
    job: Job, cost: ServingCost, dataset: OpenDataset, *, memory_bytes: int, reads_per_gib: float
) -> JobPlan:
    """Calculate what a job needs.

    Args:
        job: The job.
        cost: What serving it costs.
        dataset: Its dataset.
        memory_bytes: Bytes that its order shuffles together.
        reads_per_gib: Reads of the store per GiB of stored bytes.
    """
    batches_per_s = job.ranks / (job.step_ms / 1e3)
    epoch_s = dataset.sample_count / job.batch_size / batches_per_s
    is_cached = memory_bytes >= dataset.raw_bytes
    sent = batches_per_s * cost.batch_bytes * _HEADERS
    # What the cache holds is read once, in the first epoch.
    stored = 0.0 if is_cached else dataset.stored_bytes / epoch_s
    replicas = 2
    while True:
        # Without lanes, each replica reads what the order needs, and one may be away.
        cores = _PACED * batches_per_s * cost.warm_batch_s + replicas * stored * cost.cold_byte_s
        there = replicas - 1
        use = {
            "processors": cores / (there * job.cores * _BUSY),
            "network": sent / (there * job.network_gbit / 8 * 1e9 * _BUSY),
            "streams": job.ranks / (there * job.streams),
            "store": stored / cost.cold_bytes_per_s,
        }
        # Replicas do not help a store that is too slow for the order.
        short = max(used for name, used in use.items() if name != "store")
        if short <= 1:
            break
        replicas = max(replicas + 1, math.ceil(1 + there * short))
        if replicas > _MOST_REPLICAS:
            raise BadArgumentError(
                f"the job needs {cores:,.0f} processors and {sent * 8 / 1e9:,.0f} Gbit/s, which "
                f"{replicas:,} replicas with {job.cores} processors and {job.network_gbit:g} "
                "Gbit/s do not have; give larger ones",
                field="cores",
            )
    cache = math.ceil(min(dataset.raw_bytes, memory_bytes) * _CACHE)
    reads = math.ceil(reads_per_gib * dataset.stored_bytes / (1 << 30)) * replicas
    return JobPlan(
        replicas,
        cores,
        sent,
        stored * replicas,
        cache,
        _container_bytes(cache, cost.batch_bytes, math.ceil(job.ranks / there)),
        epoch_s,
        reads,
        reads * job.get_price / 1e6,
        cost.first_batch_ms,
        is_cached,
        max(use, key=lambda name: use[name]),
        use,
    )


def _container_bytes(cache_bytes: int, batch_bytes: float, streams: int) -> int:
    """Return the memory of a replica by the formula of docs/limits.md, and a tenth more."""
    payload_bytes = streams * (4 * batch_bytes + _MESSAGES_BYTES)
    needed = _IDLE_BYTES + _READS_BYTES + cache_bytes + payload_bytes + streams * _STREAM_BYTES
    return math.ceil(needed * _CONTAINER)
