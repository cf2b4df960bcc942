"""Measure how many processors the images of a job need, by decoding some of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from headrace.client import (
    Access,
    DecodeImage,
    NumpyDataset,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from headrace.errors import BadArgumentError
from headrace.order import sample_keys
from headrace.server.stages.images.files import Decoder, Head, head_of
from headrace.server.stages.images.recipe import recipe_of

_FILES = 64
_SECONDS = 1.0
_COLOURS = 3
_GENERATED = 16
_NOT_DECODED = (OSError, SyntaxError, ValueError, EOFError)


@dataclass(frozen=True, slots=True)
class ImageCost:
    """The processor time that a job's images take on this machine.

    Attributes:
        column: The column of the image files.
        side: The height and width of each result, in pixels.
        width: The median width of an image, in pixels.
        height: The median height of an image, in pixels.
        images_per_s: Images per second that one processor decodes, crops at random and flips.
        ranks: The number of ranks of the job.
        processors: The number of processors that the job needs.
    """

    column: str
    side: int
    width: int
    height: int
    images_per_s: float
    ranks: int
    processors: float

    def __str__(self) -> str:
        """Return the result as a sentence."""
        who = "your rank needs" if self.ranks == 1 else f"your {self.ranks} ranks need"
        return (
            f"{self.side} x {self.side} from {self.width} x {self.height}: "
            f"{self.images_per_s:,.0f} images/s per processor; {who} {self.processors:,.1f} "
            f"processor{'' if self.processors == 1 else 's'} for images"
        )


def decoding_rate(*, side: int, width: int, height: int) -> float:
    """Return the JPEGs per second that one processor of this machine decodes and crops.

    The images are generated: smooth with some noise, of quality 90, about as large as photographs.

    Args:
        side: The height and width of each result, in pixels.
        width: The width of an image, in pixels.
        height: The height of an image, in pixels.

    Raises:
        ConfigurationError: The packages of the ``[images]`` extra are missing here.
    """
    Decoder(_COLOURS)  # raises if a package is missing
    files = [memoryview(_generated_jpeg(number, width, height)) for number in range(_GENERATED)]
    return _rate(files, side)[0]


def _generated_jpeg(number: int, width: int, height: int) -> bytes:
    from PIL import Image  # noqa: PLC0415 - of the [images] extra

    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, _COLOURS), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noise = random.integers(-12, 13, smooth.shape, np.int16)
    content = BytesIO()
    Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8)).save(
        content, "JPEG", quality=90
    )
    return content.getvalue()


def measure_images(
    targets: Sequence[str],
    dataset: str,
    *,
    side: int,
    samples_per_s: float,
    ranks: int,
    columns: Sequence[str] = (),
    access: Access | None = None,
) -> ImageCost:
    """Read some images, and transform them on one processor as a server would.

    Args:
        targets: Servers of the dataset.
        dataset: Its name.
        side: The height and width of each result, in pixels.
        samples_per_s: The samples per second that each rank needs.
        ranks: The number of ranks.
        columns: Columns to search for images; empty for all.
        access: How to authenticate.

    Raises:
        BadArgumentError: No column contains images.
        ConfigurationError: The packages of the ``[images]`` extra are missing here.
        HeadraceError: No server answered, or the server refused the call.
    """
    with NumpyDataset(
        list(targets),
        dataset,
        batch_size=_FILES,
        columns=columns,
        epochs=1,
        end="uneven",
        access=access,
    ) as batches:
        arrays = next(iter(batches), {})
    column, files = _images_of(arrays)
    rate, heads = _rate(files, side)
    # Rounded up to a tenth.
    processors = math.ceil(10 * ranks * samples_per_s / rate) / 10
    width = int(statistics.median_low(head.width for head in heads))
    height = int(statistics.median_low(head.height for head in heads))
    return ImageCost(column, side, width, height, rate, ranks, processors)


def _images_of(arrays: Mapping[str, Any]) -> tuple[str, list[memoryview]]:
    """Return the first column with images, and its images."""
    for name, values in arrays.items():
        files = [memoryview(each) for each in values.flat if isinstance(each, bytes)]
        found = [file for file in files if _head(file) is not None]
        # Some files may be damaged.
        if 2 * len(found) > len(files):
            return name, found
    raise BadArgumentError(
        f"no column of the dataset contains images (JPEG, PNG, WebP, AVIF): {', '.join(arrays)}; "
        "leave --images out",
        field="images",
    )


def _head(file: memoryview) -> Head | None:
    try:
        return head_of(file)
    except _NOT_DECODED:
        return None


def _rate(files: Sequence[memoryview], side: int) -> tuple[float, list[Head]]:
    """Return the images per second of processor time, and the headers of all files."""
    step = DecodeImage("image", transforms=[RandomResizedCrop(side), RandomHorizontalFlip()])
    recipe = recipe_of(step.to_message())
    draws = recipe.draws(sample_keys(0, 0, np.arange(len(files))), 0)
    out = np.empty(recipe.shape, np.uint8)
    decoder = Decoder(recipe.channels)
    heads: dict[int, Head] = {}
    made, used_s = 0, 0.0
    # The first round, which allocates memory and loads code, does not count.
    for turn in range(1 << 20):
        start = time.thread_time()
        for row, file in enumerate(files):
            try:
                heads[row] = head = head_of(file)
                recipe.make(decoder.pixels(file, head), draws, row, out)
            except _NOT_DECODED:
                continue
            made += bool(turn)
        used_s += (time.thread_time() - start) if turn else 0.0
        if not heads:
            raise BadArgumentError("none of the images that were read can be decoded")
        if used_s >= _SECONDS:
            break
    return made / used_s, list(heads.values())
