"""Draw what the server makes of some images: a row a sample, a column an epoch.

python examples/photos/grid.py localhost:50051 grid.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from headrace.client import (
    ColorJitter,
    DecodeImage,
    NumpyDataset,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
)

_SIDE = 112
_SHOWN = 8
_STEP = DecodeImage(
    "image",
    transforms=[
        RandomResizedCrop(_SIDE),
        RandomHorizontalFlip(),
        ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
        RandomErasing(p=0.25),
    ],
)


def main() -> None:
    """Draw the first batch of storage order, in each of some epochs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("target")
    parser.add_argument("out")
    parser.add_argument("--dataset", default="train")
    given = parser.parse_args()
    draw(given.target, given.dataset, _STEP, Path(given.out), rows=_SHOWN, epochs=_SHOWN)
    print(f"drew {given.out}")


def draw(
    target: str, dataset: str, stage: DecodeImage, path: Path, *, rows: int, epochs: int
) -> None:
    """Write a picture of every hundredth sample in storage order, with a column an epoch.

    Args:
        target: The address of a server.
        dataset: The name of a dataset with a column ``image``.
        stage: Makes images ``(samples, height, width, 3) uint8``, all of one size.
        path: Of the picture.
        rows: At most how many samples to show.
        epochs: How many epochs to show.
    """
    columns = []
    with NumpyDataset(
        target, dataset, batch_size=100, shuffle=False, stages=[stage], epochs=epochs
    ) as batches:
        for _ in range(epochs):
            firsts = [arrays["image"][0] for arrays in batches]
            columns.append(np.concatenate(firsts[:rows]))
    Image.fromarray(np.concatenate(columns, axis=1)).save(path)


if __name__ == "__main__":
    main()
