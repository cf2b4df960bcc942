"""Train a small MobileNet on images that the server crops, flips and recolours.

    torchrun --nproc-per-node 2 examples/photos/train.py localhost:50051 photos.pt --epochs 12

Start it again, on any number of ranks, and it continues from its checkpoint. ``--digests FOLDER``
writes down what each rank saw, so that two runs can be compared.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.client import (
    CenterCrop,
    ColorJitter,
    DecodeImage,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RemoteDataset,
    Resize,
    Sharding,
)

GLOBAL_BATCH = 60
_SIDE = 64
_NORMAL = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
TRAIN = DecodeImage(
    "image",
    transforms=[
        RandomResizedCrop(_SIDE, scale=(0.3, 1.0)),
        RandomHorizontalFlip(),
        ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2),
        _NORMAL,
    ],
    layout="CHW",
)
EVALUATE = DecodeImage("image", transforms=[Resize(72), CenterCrop(_SIDE), _NORMAL], layout="CHW")


def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return a depthwise convolution and a pointwise one, as in MobileNet."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def make_model(classes: int) -> nn.Sequential:
    """Return a MobileNet of 50,000 parameters, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        block(16, 32, 2),
        block(32, 64, 2),
        block(64, 128, 2),
        block(128, 256, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def accuracy(model: nn.Module, target: str) -> float:
    """Return the share of images of the validation split whose class is found."""
    model.eval()
    right = count = 0
    dataset = RemoteDataset(
        target,
        "val",
        batch_size=100,
        shuffle=False,
        end="uneven",
        epochs=1,
        stages=[EVALUATE],
        rank=0,
        world_size=1,
    )
    with dataset, torch.no_grad():
        for batch in dataset:
            right += int((model(batch["image"]).argmax(1) == batch["label"]).sum())
            count += len(batch["label"])
    model.train()
    return right / count


def main() -> None:
    """Train on this rank."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("target")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument("--digests", type=Path)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    dataset = RemoteDataset(
        given.target,
        "train",
        seed=7,
        stages=[TRAIN],
        epochs=given.epochs,
        sharding=Sharding(global_batch_size=GLOBAL_BATCH),
    )
    model = DistributedDataParallel(make_model(given.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.02)
    if given.checkpoint.exists():
        saved = torch.load(given.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["dataset"])
    while dataset.batches_left:
        for batch in dataset:
            images, labels = batch["image"], batch["label"]
            loss: Any = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if given.digests is not None:
                note(given.digests / f"rank{rank}", batch.step, images)
            if rank == 0 and batch.step % 20 == 0:
                save(given.checkpoint, model.module, optimizer, dataset)
                print(f"step {batch.step} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        save(given.checkpoint, model.module, optimizer, dataset)
        print(f"accuracy {accuracy(model.module, given.target):.3f}", flush=True)
    dataset.close()
    dist.barrier()
    # A model that is let go of after the group may hang (examples/recipes/ddp.py).
    del model
    dist.destroy_process_group()


def note(path: Path, step: int, images: torch.Tensor) -> None:
    """Write down what a rank saw at a step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.blake2b(images.numpy().tobytes(), digest_size=16).hexdigest()
    with path.open("a", encoding="ascii") as file:
        file.write(f"{step} {digest}\n")


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
