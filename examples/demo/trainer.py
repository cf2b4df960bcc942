"""Train one of the models on any number of ranks, and go on after a crash.

A usual DistributedDataParallel script; what headrace adds to it is marked with (1) to (4). It
also runs alone, next to a server that serves the datasets:

    cd examples && torchrun --nproc-per-node 2 -m demo.trainer --task flights \
        --target 127.0.0.1:50051 --global-batch-size 512 --epochs 2 --folder /tmp/flights
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from demo.digest import BatchKey, SeenFile
from demo.events import EpochDone, Event, StepDone, TrainerReady, to_json, to_text
from demo.models import TASKS, Task
from headrace.client import Batch, Order, RemoteDataset, Sharding, Transport

# A rank that waits longer than this for the others gives up.
_COLLECTIVE_TIMEOUT = timedelta(seconds=120)
_TEST_BATCH_SIZE = 2048
_STEPS_A_LINE = 20


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """All settings of a training; every rank has the same.

    Attributes:
        task: A key of `demo.models.TASKS`.
        target: Address of a headrace server.
        global_batch_size: Samples a step over all ranks.
        epochs: Epochs of the whole run, those before a restart included.
        folder: Holds the checkpoint and, under ``seen/``, each rank's list of samples.
        attempt: 0 for the first start, one more for each restart; names the files in ``seen/``.
        checkpoint_every: Steps between two checkpoints.
        prefetch_bytes: What a rank may hold ready.
        seed: Of the order and of the model's first weights.
    """

    task: str
    target: str
    global_batch_size: int
    epochs: int
    folder: Path
    attempt: int
    checkpoint_every: int
    prefetch_bytes: int
    seed: int


class Trainer:
    """One rank of a training."""

    def __init__(
        self, config: TrainerConfig, *, seen: SeenFile, report: Callable[[Event], None]
    ) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.seen = seen
        self.report = report
        self.task: Task = TASKS[config.task]
        self.model = DistributedDataParallel(self.task.make_model())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.task.learning_rate)
        # (1) Rank and world size come from torch.distributed. The server shuffles and batches.
        self.train_set = RemoteDataset(
            config.target,
            f"{self.task.name}-train",
            seed=config.seed,
            columns=self.task.columns,
            stages=self.task.train_steps,
            transport=Transport(prefetch_bytes=config.prefetch_bytes),
            sharding=Sharding(global_batch_size=config.global_batch_size),
            order=Order(with_ids=True),
        )
        self.test_set = RemoteDataset(
            config.target,
            f"{self.task.name}-test",
            shuffle=False,
            end="uneven",
            columns=self.task.columns,
            stages=self.task.test_stages,
            epochs="same",
            sharding=Sharding(global_batch_size=_TEST_BATCH_SIZE),
        )

    def run(self) -> None:
        """Train to the last epoch, from the checkpoint if there is one."""
        first_step = self.load_checkpoint()
        self.report(TrainerReady(first_step=first_step, world_size=dist.get_world_size()))
        for epoch in range(first_step // len(self.train_set), self.config.epochs):
            self.train_epoch()
            self.report(EpochDone(epoch=epoch, test_accuracy=self.test()))

    def train_epoch(self) -> None:
        """Train on what the current epoch has left."""
        # (2) Whole batches of tensors; after a restart the rest of the epoch.
        for batch, started in _timed(self.train_set):
            self.set_learning_rate(batch.step)
            loss, accuracy = self.train_step(batch)
            self.report(
                StepDone(
                    epoch=batch.epoch,
                    step=batch.step,
                    loss=loss,
                    accuracy=accuracy,
                    seconds=time.time() - started,
                    finished_at=time.time(),
                    reconnect_count=self.train_set.stats().reconnect_count,
                )
            )
            if (batch.step + 1) % self.config.checkpoint_every == 0:
                self.save_checkpoint(batch.step + 1)

    def set_learning_rate(self, step: int) -> None:
        """Let the rate fall to nothing at the end; it follows from the step, also after a crash."""
        left = 1.0 - step / (self.config.epochs * len(self.train_set))
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.learning_rate * left

    def train_step(self, batch: Batch) -> tuple[float, float]:
        """Do one step; return loss and accuracy over the global batch."""
        labels = self.task.labels(batch)
        logits = self.model(*self.task.inputs(batch))
        loss = nn.functional.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        # (3) Exact also where the ranks' shares of the global batch differ in size.
        (loss * batch.loss_scale).backward()  # type: ignore[no-untyped-call] # torch has no types here
        self.optimizer.step()
        self.note_seen(batch)
        correct = (logits.argmax(dim=1) == labels).sum()
        total = _sum_over_ranks(loss.detach() * len(labels), correct)
        return total[0] / batch.global_sample_count, total[1] / batch.global_sample_count

    def note_seen(self, batch: Batch) -> None:
        """Write down the sample ids, so that the demo can prove what was seen."""
        assert batch.sample_ids is not None, "asked for with Order(with_ids=True)"
        self.seen.append(BatchKey(batch.epoch, batch.position), batch.sample_ids.numpy())

    @torch.no_grad()
    def test(self) -> float:
        """Return the share of the test samples that the model gets right, over all ranks."""
        correct, count = torch.zeros(()), torch.zeros(())
        # Normalise by the statistics of the training, not by those of a test batch.
        self.model.eval()
        for batch in self.test_set:
            logits = self.model.module(*self.task.inputs(batch))
            correct += (logits.argmax(dim=1) == self.task.labels(batch)).sum()
            count += batch.sample_count
        self.model.train()  # type: ignore[no-untyped-call] # torch has no types here
        total = _sum_over_ranks(correct, count)
        return total[0] / total[1]

    def save_checkpoint(self, step: int) -> None:
        """Save model, optimizer and place in the data after ``step`` steps; rank 0 alone."""
        if dist.get_rank() != 0:
            return
        unfinished = self.checkpoint.with_suffix(".unfinished")
        torch.save(
            {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                # (4) The same on every rank, and good for any number of ranks.
                "dataset": self.train_set.state_dict(),
                "step": step,
            },
            unfinished,
        )
        unfinished.replace(self.checkpoint)

    def load_checkpoint(self) -> int:
        """Take up the checkpoint if there is one; return the number of steps done so far."""
        if not self.checkpoint.exists():
            return 0
        state = torch.load(self.checkpoint, weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.train_set.load_state_dict(state["dataset"])
        return int(state["step"])

    @property
    def checkpoint(self) -> Path:
        """The one checkpoint, replaced by each newer one."""
        return self.config.folder / "checkpoint.pt"

    def close(self) -> None:
        """Drop the connections."""
        self.train_set.close()
        self.test_set.close()


def seen_path(folder: Path, *, attempt: int, rank: int) -> Path:
    """Name the file in which a rank notes what it saw."""
    return folder / "seen" / f"attempt-{attempt}-rank-{rank}.bin"


def _timed(batches: RemoteDataset) -> Iterator[tuple[Batch, float]]:
    """Yield each batch with the time at which it was asked for."""
    started = time.time()
    for batch in batches:
        yield batch, started
        started = time.time()


def _sum_over_ranks(*values: Tensor) -> list[float]:
    total = torch.stack([value.float() for value in values])
    dist.all_reduce(total)
    sums: list[float] = total.tolist()
    return sums


def _reporter(*, as_json: bool) -> Callable[[Event], None]:
    """Make what prints events: on rank 0 alone, for people not every step."""
    if dist.get_rank() != 0:
        return lambda _event: None
    if as_json:
        return lambda event: click.echo(to_json(event))
    return _print_for_people


def _print_for_people(event: Event) -> None:
    if not isinstance(event, StepDone) or event.step % _STEPS_A_LINE == 0:
        click.echo(to_text(event))


@click.command()
@click.option("--task", type=click.Choice(sorted(TASKS)), required=True)
@click.option("--target", required=True, metavar="HOST:PORT", help="A headrace server.")
@click.option("--global-batch-size", type=click.IntRange(1), required=True)
@click.option("--epochs", type=click.IntRange(1), required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--attempt", type=click.IntRange(0), default=0, show_default=True)
@click.option("--checkpoint-every", type=click.IntRange(1), default=100, show_default=True)
@click.option("--prefetch-bytes", type=click.IntRange(0), default=64 << 20, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print every event as a JSON line.")
def main(
    *,
    task: str,
    target: str,
    global_batch_size: int,
    epochs: int,
    folder: Path,
    attempt: int,
    checkpoint_every: int,
    prefetch_bytes: int,
    seed: int,
    as_json: bool,
) -> None:
    """Run one rank of a training; torchrun, or the environment, says which."""
    config = TrainerConfig(
        task=task,
        target=target,
        global_batch_size=global_batch_size,
        epochs=epochs,
        folder=folder,
        attempt=attempt,
        checkpoint_every=checkpoint_every,
        prefetch_bytes=prefetch_bytes,
        seed=seed,
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=_COLLECTIVE_TIMEOUT)
    try:
        _train(config, report=_reporter(as_json=as_json))
    finally:
        dist.destroy_process_group()


def _train(config: TrainerConfig, *, report: Callable[[Event], None]) -> None:
    path = seen_path(config.folder, attempt=config.attempt, rank=dist.get_rank())
    with SeenFile(path) as seen:
        trainer = Trainer(config, seen=seen, report=report)
        try:
            trainer.run()
        finally:
            trainer.close()


if __name__ == "__main__":
    main()
