"""Read a stream without any disturbance, to compare a training with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from demo.digest import BatchKey, Comparison, SampleIds, compare
from demo.jobs import Job
from demo.models import TASKS
from demo.training import Record
from headrace.client import Order, RemoteDataset, Sharding


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the demo claims of one training.

    Attributes:
        record: The training.
        comparison: Its samples beside those of an undisturbed run.
        majority: Share of the most frequent label in the test: what knowing nothing gets right.
    """

    record: Record
    comparison: Comparison
    majority: float

    @property
    def learned(self) -> bool:
        """Whether the test accuracy reached the floor."""
        return self.record.final_accuracy >= self.record.job.accuracy_floor

    @property
    def passed(self) -> bool:
        """Whether it learned from exactly the samples of an undisturbed run."""
        return self.learned and self.comparison.equal


def judge(record: Record, target: str) -> Verdict:
    """Compare a training with a straight pass over the same stream."""
    wanted = read_undisturbed(record.job, target)
    return Verdict(record, compare(record.seen(), wanted), majority_share(record.job, target))


def read_undisturbed(job: Job, target: str) -> dict[BatchKey, SampleIds]:
    """Read all epochs as one rank of one, and keep the sample ids of each global batch."""
    dataset = RemoteDataset(
        target,
        f"{job.task}-train",
        seed=job.seed,
        epochs=job.epochs,
        columns=[TASKS[job.task].label],
        rank=0,
        world_size=1,
        sharding=Sharding(global_batch_size=job.global_batch_size),
        order=Order(with_ids=True),
    )
    seen: dict[BatchKey, SampleIds] = {}
    try:
        for _ in range(job.epochs):
            for batch in dataset:
                assert batch.sample_ids is not None, "asked for with Order(with_ids=True)"
                seen[BatchKey(batch.epoch, batch.position)] = batch.sample_ids.numpy()
    finally:
        dataset.close()
    return seen


def majority_share(job: Job, target: str) -> float:
    """Return the share of the most frequent label among the test samples."""
    label = TASKS[job.task].label
    dataset = RemoteDataset(
        target,
        f"{job.task}-test",
        batch_size=4096,
        shuffle=False,
        end="uneven",
        epochs=1,
        columns=[label],
        rank=0,
        world_size=1,
    )
    labels: Counter[int] = Counter()
    try:
        for batch in dataset:
            labels.update(batch[label].tolist())
    finally:
        dataset.close()
    return max(labels.values()) / labels.total()
