"""One rank of an evaluation: ``evaluation_job.py FRAMEWORK ADDRESS FOLDER``, as torchrun starts it.

Rank 0 writes the numbers of all samples that were counted, twice over, to ``FOLDER/counted.json``.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

BATCH = 16


def _accelerate(address: str, folder: Path) -> list[list[int]]:
    del folder
    from accelerate import Accelerator

    from headrace.integrations.accelerate import evaluated, remote

    accelerator = Accelerator(cpu=True)
    loader = evaluated(accelerator, remote(address, "val", batch_size=BATCH))
    return [
        torch.cat([accelerator.gather_for_metrics(batch["id"]) for batch in loader]).tolist()
        for _ in range(2)
    ]


def _transformers(address: str, folder: Path) -> list[list[int]]:
    from transformers import TrainingArguments

    from headrace.integrations.transformers import RemoteTrainer, remote

    class Echo(torch.nn.Module):
        """Predicts a sample's number."""

        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(8, 1)

        def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:  # noqa: A002 - a column
            return {"loss": ((self.line(x)[:, 0] - y) ** 2).mean(), "number": id}

    counted: list[list[int]] = []

    def count(found: Any) -> dict[str, float]:
        counted.append(found.predictions.tolist())
        return {}

    settings = TrainingArguments(
        output_dir=str(folder),
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        per_device_eval_batch_size=BATCH,
        label_names=["y"],
    )
    trainer = RemoteTrainer(
        Echo(), settings, eval_dataset=remote(address, "val"), compute_metrics=count
    )
    trainer.evaluate()
    trainer.evaluate()
    return counted


def _lightning(address: str, folder: Path) -> list[list[int]]:
    del folder
    import lightning

    from headrace.integrations.lightning import RemoteData, remote

    counted: list[list[int]] = []

    class Echo(lightning.LightningModule):
        """Notes a sample's number."""

        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(8, 1)

        def on_validation_epoch_start(self) -> None:
            counted.append([])

        def validation_step(self, batch: Any) -> None:
            ids = torch.where(batch.is_pad, -1, batch["id"])
            counted[-1] += [each for each in self.all_gather(ids).flatten().tolist() if each >= 0]

    source = remote(address, "val", batch_size=BATCH)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = RemoteData(source, source)
    for _ in range(2):
        trainer.validate(Echo(), datamodule=data, verbose=False)
    return counted


JOBS: dict[str, Callable[[str, Path], list[list[int]]]] = {
    "accelerate": _accelerate,
    "lightning": _lightning,
    "transformers": _transformers,
}


def main(framework: str, address: str, folder: str) -> None:
    """Evaluate twice."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counted = JOBS[framework](address, Path(folder))
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        Path(folder, "counted.json").write_text(json.dumps(counted))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
