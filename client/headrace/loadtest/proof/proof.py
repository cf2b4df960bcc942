"""Compare what the ranks received with what they should have.

Every batch that a rank received must be in the plan for that rank, once and in order, and a rank
that finished must not miss any. With an order, made from the manifest alone, each batch's samples
are compared too, place by place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.loadtest.swarm.rank import RankResult
from headrace.loadtest.swarm.records import Records, id_sum, id_sum_of_range, order_sum, total
from headrace.loadtest.swarm.spec import Generation, SwarmSpec
from headrace.loadtest.swarm.swarm import SwarmResult

_MOST_EXAMPLES = 5
_CHUNK = 1 << 20


class AnyOrder(Protocol):
    """An order of the manifests' samples: `headrace.order.Order` or `MixtureOrder`."""

    @property
    def sample_count(self) -> int:
        """Return the number of positions of an epoch."""
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
        altered: Batches with other samples or places than the order's; 0 without a manifest.
        digest: The digest of what was received: equal for equal samples at equal places, for any
            ranks.
        wanted_digest: The same from the manifest alone; empty without one.
        epochs_whole: Epochs of which every sample was seen exactly once, over all jobs; of a
            mixture, every draw.
        epochs_complete: Epochs that the run covered from start to end, over all jobs.
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
        """Return whether everything arrived exactly once, in order and unaltered."""
        faults = self.lost + self.repeated + self.out_of_order + self.foreign + self.altered
        if self.wanted_digest and self.wanted_digest != self.digest:
            return False
        return not faults and self.epochs_whole == self.epochs_complete


def prove(swarm: SwarmResult, orders: Sequence[AnyOrder] | None) -> Proof:
    """Check the records of a swarm.

    Args:
        swarm: The results of the swarm.
        orders: One order per job, made from the manifest; None to compare only coordinates and
            counts.
    """
    spec, results = swarm.spec, swarm.results
    proof = Proof()
    for number, generation in enumerate(swarm.generations):
        found = [result for result in results if result.seat.generation == number]
        for result in found:
            proof = _check_rank(proof, spec, generation, result)
    whole, complete = _epochs(spec, results, orders)
    proof = replace(proof, epochs_whole=whole, epochs_complete=complete)
    records = [result.records for result in results]
    digest = total([total(part["order_sum"]) for part in records])
    proof = replace(proof, digest=f"{digest:016x}")
    return proof if orders is None else _compare(proof, swarm, orders)


def _check_rank(proof: Proof, spec: SwarmSpec, generation: Generation, result: RankResult) -> Proof:
    records = result.records
    size = spec.global_batch_size
    steps = records["epoch"] * spec.plan.batch_count + records["position"] // size
    inside = (steps >= generation.first_step) & (steps < generation.end_step)
    aligned = records["position"] % size == 0
    known, counts = np.unique(steps[inside & aligned], return_counts=True)
    # A rank that was stopped early lost nothing after the last batch it received.
    ended = not result.error and spec.seconds is None
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


def _epochs(
    spec: SwarmSpec, results: Sequence[RankResult], orders: Sequence[AnyOrder] | None
) -> tuple[int, int]:
    """Count the epochs of which every sample was seen exactly once, and those that were run."""
    if any(result.error for result in results) or spec.seconds is not None or spec.plan.dropped:
        return 0, 0
    is_whole = spec.mixture is None and not spec.where
    if not is_whole and orders is None:
        return 0, 0  # only the manifests tell which samples such an epoch has
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
    """Return the digest of the samples that an epoch draws, counting each draw."""
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
    records.sort(order=["job", "epoch", "position"])  # so that the order's windows are made once
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
                f"{position} does not have the samples that the manifest gives"
            )
    return replace(
        _with_examples(proof, examples), altered=altered, wanted_digest=f"{total(wanted_sums):016x}"
    )


def _with_examples(proof: Proof, examples: Sequence[str]) -> Proof:
    return replace(proof, examples=(*proof.examples, *examples)[:_MOST_EXAMPLES])
