"""Compare what the ranks received with the plan.

Each batch that a rank received must be in the rank's plan, once and in order, and a rank that
finished must have received all of them. With an order computed from the manifest, the samples of
each batch are compared as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.loadtest.swarm.rank import RankResult
from headrace.loadtest.swarm.records import Records, id_sum, id_sum_of_range, order_sum, total
from headrace.loadtest.swarm.spec import Generation
from headrace.loadtest.swarm.swarm import SwarmResult

_MAX_EXAMPLES = 5
_CHUNK = 1 << 20


class AnyOrder(Protocol):
    """An order: `headrace.order.Order` or `MixtureOrder`."""

    @property
    def sample_count(self) -> int:
        """Return the number of positions in an epoch."""
        ...

    def sample_ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at the positions [start, stop) of an epoch."""
        ...


@dataclass(frozen=True, slots=True)
class Proof:
    """The number of faults of each kind, with examples.

    Attributes:
        batches: Batches compared.
        samples: Samples in them.
        lost: Batches that a rank should have received but did not.
        repeated: Batches that a rank received twice.
        out_of_order: Batches that arrived after a later one.
        foreign: Batches that do not belong to their rank.
        altered: Batches whose samples differ from the order; 0 without a manifest.
        digest: The digest of all samples and their positions, which does not depend on the ranks.
        wanted_digest: The digest according to the manifest; empty without one.
        epochs_whole: Epochs over all jobs in which every sample, or every draw of a mixture, was
            received exactly once.
        epochs_complete: Epochs over all jobs that the run covered from start to end.
        examples: Some of the faults, in words.
    """

    batches: int = 0
    samples: int = 0
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    foreign: int = 0
    altered: int = 0
    digest: str = ""
    wanted_digest: str = ""
    epochs_whole: int = 0
    epochs_complete: int = 0
    examples: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Return whether all samples arrived exactly once, in order and unaltered."""
        faults = self.lost + self.repeated + self.out_of_order + self.foreign + self.altered
        if self.wanted_digest and self.wanted_digest != self.digest:
            return False
        return not faults and self.epochs_whole == self.epochs_complete


def prove(swarm: SwarmResult, orders: Sequence[AnyOrder] | None) -> Proof:
    """Check the records of a swarm.

    Args:
        swarm: The results of the swarm.
        orders: The order of each job, computed from the manifest; None to compare only positions
            and counts.
    """
    results = swarm.results
    proof = Proof()
    for number, generation in enumerate(swarm.generations):
        found = [result for result in results if result.seat.generation == number]
        for result in found:
            proof = _check_rank(proof, swarm, generation, result)
    whole, complete = _epochs(swarm, orders)
    proof = replace(proof, epochs_whole=whole, epochs_complete=complete)
    records = [result.records for result in results]
    digest = total([total(part["order_sum"]) for part in records])
    proof = replace(proof, digest=f"{digest:016x}")
    return proof if orders is None else _compare(proof, swarm, orders)


def _check_rank(
    proof: Proof, swarm: SwarmResult, generation: Generation, result: RankResult
) -> Proof:
    spec, records = swarm.spec, result.records
    size = spec.global_batch_size
    steps = records["epoch"] * spec.plan.batch_count + records["position"] // size
    inside = (steps >= generation.first_step) & (steps < generation.end_step)
    aligned = records["position"] % size == 0
    known, counts = np.unique(steps[inside & aligned], return_counts=True)
    # A rank that stopped early lost nothing after its last batch.
    is_last = generation is swarm.generations[-1]
    ended = not result.error and not (swarm.may_lack_steps and is_last)
    reached = generation.end_step if ended else int(known[-1]) + 1 if known.size else 0
    lost = max(0, reached - generation.first_step) - known.size
    faults = {
        "lost": lost,
        "repeated": int((counts - 1).sum()),
        "out_of_order": int((np.diff(steps) < 0).sum()),
        "foreign": int(records.size - (inside & aligned).sum()),
    }
    seat = result.seat
    where = f"job {seat.job} rank {seat.rank} of {generation.world_size}"
    examples = [f"{where}: {count} batches {name}" for name, count in faults.items() if count]
    return replace(
        _with_examples(proof, examples),
        batches=proof.batches + records.size,
        samples=proof.samples + int(records["sample_count"].sum()),
        lost=proof.lost + faults["lost"],
        repeated=proof.repeated + faults["repeated"],
        out_of_order=proof.out_of_order + faults["out_of_order"],
        foreign=proof.foreign + faults["foreign"],
    )


def _epochs(swarm: SwarmResult, orders: Sequence[AnyOrder] | None) -> tuple[int, int]:
    """Count the epochs that were received exactly once, and those that were run."""
    spec, results = swarm.spec, swarm.results
    if any(result.error for result in results) or swarm.may_lack_steps or spec.plan.dropped:
        return 0, 0
    is_whole = spec.mixture is None and not spec.where
    if not is_whole and orders is None:
        return 0, 0  # only the manifests tell the samples of such an epoch
    complete = spec.steps // spec.plan.batch_count
    once = id_sum_of_range(spec.sample_count) if complete and is_whole else 0
    records = np.concatenate([result.records for result in results])
    whole = 0
    for job in range(spec.jobs):
        for epoch in range(complete):
            part = records[(records["job"] == job) & (records["epoch"] == epoch)]
            seen = int(part["sample_count"].sum())
            wanted = once if orders is None or is_whole else _drawn(orders[job], epoch)
            whole += seen == spec.sample_count and total(part["id_sum"]) == wanted
    return whole, spec.jobs * complete


def _drawn(order: AnyOrder, epoch: int) -> int:
    """Return the digest of the draws of an epoch."""
    starts = range(0, order.sample_count, _CHUNK)
    ends = (min(start + _CHUNK, order.sample_count) for start in starts)
    parts = (
        id_sum(order.sample_ids(epoch, start, end)) for start, end in zip(starts, ends, strict=True)
    )
    return sum(parts) % (1 << 64)


def _compare(proof: Proof, swarm: SwarmResult, orders: Sequence[AnyOrder]) -> Proof:
    spec, results = swarm.spec, swarm.results
    sizes = [generation.world_size for generation in swarm.generations]
    wanted_sums: list[int] = []
    altered = 0
    examples: list[str] = []
    records: Records = np.concatenate([result.records for result in results])
    # Sorted, so that each window of the order is computed once.
    records.sort(order=["job", "epoch", "position"])
    for record in records:
        rank, size = int(record["rank"]), sizes[record["generation"]]
        epoch, position = int(record["epoch"]), int(record["position"])
        part = spec.part(position, rank=rank, world_size=size)
        ids = orders[record["job"]].sample_ids(epoch, part.start, part.stop)
        wanted = order_sum(ids, epoch=epoch, start=part.start)
        wanted_sums.append(wanted)
        if wanted != record["order_sum"] or id_sum(ids) != record["id_sum"]:
            altered += 1
            examples.append(
                f"job {record['job']} rank {rank} of {size}: the batch at epoch {epoch} position "
                f"{position} differs from the manifest"
            )
    return replace(
        _with_examples(proof, examples), altered=altered, wanted_digest=f"{total(wanted_sums):016x}"
    )


def _with_examples(proof: Proof, examples: Sequence[str]) -> Proof:
    return replace(proof, examples=(*proof.examples, *examples)[:_MAX_EXAMPLES])
