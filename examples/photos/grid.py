"""Draw what the server makes of some images: a row a sample, a column an epoch.

python examples/photos/grid.py localhost:50051 grid.png
"""

from __future__ import annotations

import argparse

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
    grid = np.zeros((_SHOWN * _SIDE, _SHOWN * _SIDE, 3), np.uint8)
    with NumpyDataset(
        given.target, given.dataset, batch_size=100, shuffle=False, stages=[_STEP], epochs=_SHOWN
    ) as dataset:
        for epoch in range(_SHOWN):
            for number, arrays in enumerate(dataset):
                if number >= _SHOWN:
                    continue
                row, column = number * _SIDE, epoch * _SIDE
                grid[row : row + _SIDE, column : column + _SIDE] = arrays["image"][0]
    Image.fromarray(grid).save(given.out)
    print(f"drew {given.out}")


if __name__ == "__main__":
    main()
