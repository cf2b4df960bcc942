"""What every reader does to a photograph: decode, crop at random, resize to 224 x 224, flip.

The ranges are those of torchvision's RandomResizedCrop and RandomHorizontalFlip; the crop is
resized with antialiasing. Readers whose transforms are Python use Pillow, as torchvision does by
default.
"""

from __future__ import annotations

import io
import math
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 224
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_TRIALS = 10


def augmented(content: bytes | memoryview) -> NDArray[np.uint8]:
    """Return uint8[224, 224, 3] of one JPEG file, cropped and flipped at random."""
    from PIL import Image  # noqa: PLC0415 - not where TensorFlow decodes

    image = Image.open(io.BytesIO(content)).convert("RGB")
    left, top, width, height = _box(image.width, image.height)
    box = (left, top, left + width, top + height)
    scaled = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
    pixels: Any = np.asarray(scaled)
    return np.ascontiguousarray(pixels[:, ::-1]) if random.random() < 0.5 else pixels.copy()


def _box(width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(_TRIALS):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(*map(math.log, RATIO)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            return random.randint(0, width - across), random.randint(0, height - down), across, down
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side
