"""The models, and how each takes a batch: plain PyTorch.

A `Task` is all that differs between the trainings; `trainer.py` is the same for both.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from headrace.client import Batch, DecodeImage
from photos.train import EVALUATE, TRAIN, make_model


@dataclass(frozen=True, slots=True)
class Task:
    """What to learn from a dataset.

    Attributes:
        name: The datasets are served as ``<name>-train`` and ``<name>-test``.
        label: The column to predict, ``(samples,)`` integers from 0.
        columns: The columns to fetch, the label among them; the server sends no others.
        make_model: Builds the model; its forward takes what ``inputs`` returns.
        inputs: Turns a batch into the arguments of the model.
        learning_rate: Of Adam, at the first step.
        train_steps: What the server does with batches for training.
        test_stages: What the server does with batches for the test.
    """

    name: str
    label: str
    columns: tuple[str, ...]
    make_model: Callable[[], nn.Module]
    inputs: Callable[[Batch], tuple[Tensor, ...]]
    learning_rate: float
    train_steps: tuple[DecodeImage, ...] = ()
    test_stages: tuple[DecodeImage, ...] = ()

    def labels(self, batch: Batch) -> Tensor:
        """Return the batch's labels, ``(samples,) int64``."""
        return batch[self.label].long()


class DigitsModel(nn.Module):
    """A small convolutional network for grey images of 8x8 pixels and ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Compute ``(samples, 10)`` logits from ``(samples, 1, 8, 8) float32``."""
        logits: Tensor = self.layers(images)
        return logits


class FlightsModel(nn.Module):
    """A perceptron over eight numbers and the embeddings of three codes; two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.carrier = nn.Embedding(16, 4)
        self.origin = nn.Embedding(3, 2)
        self.destination = nn.Embedding(105, 8)
        self.layers = nn.Sequential(
            *(nn.Linear(8 + 4 + 2 + 8, 64), nn.ReLU()),
            *(nn.Linear(64, 64), nn.ReLU()),
            nn.Linear(64, 2),
        )

    def forward(
        self, numbers: Tensor, carrier: Tensor, origin: Tensor, destination: Tensor
    ) -> Tensor:
        """Compute ``(samples, 2)`` logits from ``(samples, 8) float32`` and three codes."""
        embedded = (self.carrier(carrier), self.origin(origin), self.destination(destination))
        logits: Tensor = self.layers(torch.cat((numbers, *embedded), dim=1))
        return logits


def decode_images(batch: Batch) -> tuple[Tensor]:
    """Decode the PNG files of a batch to ``(samples, 1, 8, 8) float32`` in [0, 1]."""
    files = [file for file in batch.blobs["image"] if file is not None]
    pixels = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
    images = np.stack(pixels) if pixels else np.empty((0, 8, 8), np.uint8)
    return (torch.from_numpy(images).unsqueeze(1).float() / 255,)


def decoded_images(batch: Batch) -> tuple[Tensor]:
    """Return ``(samples, 3, 64, 64) float32``: the server has decoded and augmented them."""
    return (batch["image"],)


def flight_features(batch: Batch) -> tuple[Tensor, ...]:
    """Return the numbers ``(samples, 8) float32`` and the three codes ``(samples,) int64``."""
    codes = (batch[name].long() for name in ("carrier", "origin", "destination"))
    return (batch["numbers"], *codes)


TASKS: Mapping[str, Task] = {
    "digits": Task(
        name="digits",
        label="label",
        columns=("image", "label"),
        make_model=DigitsModel,
        inputs=decode_images,
        learning_rate=2e-3,
    ),
    "flights": Task(
        name="flights",
        label="late",
        columns=("numbers", "carrier", "origin", "destination", "late"),
        make_model=FlightsModel,
        inputs=flight_features,
        learning_rate=2e-3,
    ),
    "photos": Task(
        name="photos",
        label="label",
        columns=("image", "label"),
        make_model=functools.partial(make_model, 2),
        inputs=decoded_images,
        learning_rate=4e-3,
        train_steps=(TRAIN,),
        test_stages=(EVALUATE,),
    ),
}
