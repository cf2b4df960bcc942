"""Ray Train, by the checkpoints that it restores; Ray starts the ranks itself."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from headrace.integrations.ray import remote, report, trained
from integrations.degrees.told import EPOCHS, EVERY, SHARDING, Told, loss_of, rows
from integrations.line import STEPS

Work = Callable[[Told], None]


def headrace(told: Told) -> None:
    """Read from a server."""
    _run(told, _remote)


def own(told: Told) -> None:
    """Read by DataLoader, prepared by Ray, and save when an epoch is over."""
    _run(told, _prepared)


def _run(told: Told, work: Work) -> None:
    """Start the workers, and die like them."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    ray.init(num_cpus=told.ranks, include_dashboard=False, logging_level="error")
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"told": replace(told, log=None), "work": work},
        scaling_config=train.ScalingConfig(num_workers=told.ranks),
        run_config=train.RunConfig(name="run", storage_path=str(told.folder / "storage")),
    )
    try:
        trainer.fit()
    except train.TrainingFailedError:
        ray.shutdown()
        if not (told.folder / "killed").exists():
            raise
        (told.folder / "killed").unlink()
        os.kill(os.getpid(), 9)
    ray.shutdown()


def _worker(given: dict[str, Any]) -> None:
    told: Told = given["told"]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank = train.get_context().get_world_rank()
    with (told.folder / f"{rank}.jsonl").open("a", buffering=1) as log:
        given["work"](replace(told, log=log))


def _remote(told: Told) -> None:
    loader = trained(remote(told.address, "train", seed=3, sharding=SHARDING))
    for step, state in _steps(told, lambda _: loader):
        if step % EVERY == 0:
            with tempfile.TemporaryDirectory() as saved:
                torch.save(state, f"{saved}/state.pt")
                is_first = train.get_context().get_world_rank() == 0
                report(loader, {"step": step}, train.Checkpoint(saved) if is_first else None)
    loader.close()


def _prepared(told: Told) -> None:
    loader = prepare_data_loader(DataLoader(rows(), told.batch_size, shuffle=True))

    def begun(epoch: int) -> Any:
        loader.sampler.set_epoch(epoch)
        return loader

    for step, state in _steps(told, begun):
        if step % STEPS == 0:
            with tempfile.TemporaryDirectory() as saved:
                torch.save(state, f"{saved}/state.pt")
                is_first = train.get_context().get_world_rank() == 0
                train.report(
                    {"step": step}, checkpoint=train.Checkpoint(saved) if is_first else None
                )


def _steps(told: Told, begun: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
    """Train, and yield after each step how many there were, and what a checkpoint holds."""
    model = torch.nn.Linear(8, 1)
    step = 0
    if (found := train.get_checkpoint()) is not None:
        with found.as_directory() as saved:
            state = torch.load(f"{saved}/state.pt")
        model.load_state_dict(state["model"])
        step = state["step"]
    parallel = prepare_model(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for epoch in range(step // STEPS, EPOCHS):
        for batch in begun(epoch):
            loss = loss_of(parallel, batch)
            if step == told.kill:
                (told.folder / "killed").touch()
            told.note(epoch, step, batch["id"], loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            yield step, {"model": model.state_dict(), "step": step}
