"""JPEG files for `exam.waits`, and what a user's function makes of their bytes.

`make` writes a few of them, as large as photographs of 400 x 300 are; `exam.job.payload` gives them
out again and again. Every library decodes them to pixels in its workers or on its server, by its
own decoder where it has one, and by Pillow where its documentation leaves that to the user.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exam.job import KIND, PAYLOAD_BYTES, PICTURES

HEIGHT, WIDTH = 300, 400
_QUALITIES = range(95, 20, -1)
_COARSE = 25, 19  # so large are the spots of a picture


def make(folder: Path) -> None:
    """Write pictures of about the bytes of a sample, different ones."""
    from PIL import Image  # noqa: PLC0415 - TensorFlow's environment has none

    folder.mkdir()
    for number in range(PICTURES):
        chance = random.Random(number)
        spots = Image.frombytes("RGB", _COARSE, chance.randbytes(3 * _COARSE[0] * _COARSE[1]))
        grain = Image.frombytes("RGB", (WIDTH, HEIGHT), chance.randbytes(3 * WIDTH * HEIGHT))
        smooth = spots.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        picture = Image.blend(smooth, grain, 0.1)
        content = next(each for each in _coded(picture) if len(each) <= PAYLOAD_BYTES)
        (folder / f"{number}.jpg").write_bytes(content)


def _coded(picture: Any) -> Any:
    for quality in _QUALITIES:
        found = io.BytesIO()
        picture.save(found, "JPEG", quality=quality)
        yield found.getvalue()


def decoded(content: bytes | memoryview) -> Any:
    """Return the pixels of a picture as uint8[300, 400, 3]; other samples as they are."""
    if KIND != "images":
        return content
    import numpy as np  # noqa: PLC0415 - the same
    from PIL import Image  # noqa: PLC0415 - the same

    return np.array(Image.open(io.BytesIO(content)).convert("RGB"))


def stacked(contents: Sequence[bytes | memoryview]) -> Any:
    """Return the pixels of a batch as one array; other samples as ``bytes``."""
    if KIND != "images":
        return [bytes(each) for each in contents]
    import numpy as np  # noqa: PLC0415 - the same

    return np.stack([decoded(each) for each in contents])
