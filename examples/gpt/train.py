"""Train a GPT on packed rows; its losses are the same, bit by bit, on any number of ranks.

    torchrun --nproc-per-node 2 examples/gpt/train.py localhost:50051 corpus:256 gpt.pt

Start it again, on any number of ranks, and it continues from its checkpoint. ``--notes FOLDER``
writes down the loss of each step and what each rank saw, so that two runs can be compared.

Losses of runs on other numbers of ranks usually differ in their last digits, since gradients are
added in another order. Here the rows of a global batch are the same for any number of ranks, so
what is left is to add them exactly: each row's gradient is taken alone and added as integers.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from model import Gpt
from torch import Tensor, nn

from headrace.client import Batch, RemoteDataset, Sharding

GLOBAL_BATCH = 12  # rows; for 1, 2, 3, 4, 6 or 12 ranks
_SCALE = float(1 << 32)  # integers for each one of a gradient
_COLUMNS = ["tokens", "tokens.labels", "tokens.positions", "tokens.documents"]


def main() -> None:
    """Train on this rank."""
    given = _arguments()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = RemoteDataset(
        given.target,
        given.dataset,
        seed=7,
        columns=_COLUMNS,
        epochs=given.epochs,
        sharding=Sharding(global_batch_size=GLOBAL_BATCH),
    )
    length = int(given.dataset.rpartition(":")[2])
    model = Gpt(length, given.width, given.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    if given.checkpoint.exists():
        saved = torch.load(given.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["dataset"])
    elif dist.get_rank() == 0:
        print(f"a GPT of {sum(each.numel() for each in model.parameters()):,} parameters")
    while dataset.batches_left:
        for batch in dataset:
            loss = train_step(model, optimizer, batch)
            if given.notes is not None:
                note(given.notes, batch, loss)
            if dist.get_rank() == 0 and batch.step % given.checkpoint_every == 0:
                save(given.checkpoint, model, optimizer, dataset)
                print(f"step {batch.step} loss {loss:.3f}", flush=True)
    dataset.close()
    dist.barrier()
    dist.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("target")
    parser.add_argument("dataset", help="NAME:LENGTH")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps")
    parser.add_argument("--notes", type=Path)
    return parser.parse_args()


def train_step(model: Gpt, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Take a step with a global batch, of which each rank has some rows; return its mean loss."""
    columns = [batch[name].long() for name in _COLUMNS]
    parameters = list(model.parameters())
    # The loss, the tokens that it is the sum over, and all gradients.
    sums = torch.zeros(2 + sum(each.numel() for each in parameters), dtype=torch.int64)
    for row in range(len(columns[0])):
        tokens, labels, positions, documents = (column[row : row + 1] for column in columns)
        found = model(tokens, positions, documents)
        loss: Any = nn.functional.cross_entropy(found[0], labels[0], reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        gradients = [each.grad.flatten() for each in parameters if each.grad is not None]
        sums[0] += exact(loss.detach())
        sums[1] += int((labels >= 0).sum())
        sums[2:] += exact(torch.cat(gradients))
    # Integers have the same sum in any order.
    dist.all_reduce(sums)
    count = int(sums[1])
    means = (sums[2:].double() / (_SCALE * count)).float()
    start = 0
    for each in parameters:
        each.grad = means[start : start + each.numel()].view_as(each)
        start += each.numel()
    optimizer.step()
    return int(sums[0]) / (_SCALE * count)


def exact(numbers: Tensor) -> Tensor:
    """Return numbers as integers, whose sums do not depend on the order."""
    return (numbers.double() * _SCALE).round().long()


def note(folder: Path, batch: Batch, loss: float) -> None:
    """Write down the loss of a step, and a digest of each row that this rank saw."""
    folder.mkdir(parents=True, exist_ok=True)
    digests = [
        hashlib.blake2b(row.numpy().tobytes(), digest_size=8).hexdigest()
        for row in torch.stack([batch[name].int() for name in _COLUMNS], 1)
    ]
    place = f"{dist.get_world_size()}-{dist.get_rank()}"
    with (folder / place).open("a", encoding="ascii") as file:
        file.write(f"{batch.step} {loss.hex()} {' '.join(digests)}\n")


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, dataset: RemoteDataset
) -> None:
    """Replace the checkpoint, so that a kill leaves the one or the other."""
    fresh = path.with_suffix(".new")
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**saved, "dataset": dataset.state_dict()}, fresh)
    fresh.replace(path)


if __name__ == "__main__":
    main()
