"""Draw what the server made of the photographs, as the trainer got it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from headrace.client import NumpyDataset
from photos.train import TRAIN

SAMPLES, EPOCHS = 6, 10
"""Rows and columns of the sheet."""


def draw_contact_sheet(target: str, path: Path) -> None:
    """Write a PNG picture with a row a sample and a column an epoch.

    Args:
        target: The address of the demo's server.
        path: Of the picture.
    """
    # As trained on, but in colours that a picture has: the last transform makes them numbers.
    stage = replace(TRAIN, transforms=TRAIN.transforms[:-1], layout="HWC")
    columns = []
    with NumpyDataset(
        target,
        "photos-train",
        batch_size=600,
        shuffle=False,
        columns=["image"],
        stages=[stage],
        epochs=EPOCHS,
    ) as dataset:
        for _ in range(EPOCHS):
            (images,) = (arrays["image"] for arrays in dataset)
            columns.append(np.concatenate(images[:: len(images) // SAMPLES][:SAMPLES]))
    Image.fromarray(np.concatenate(columns, axis=1)).save(path)
