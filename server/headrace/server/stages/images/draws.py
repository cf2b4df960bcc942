"""Draw the random numbers of a transform, for all images of a batch at once.

docs/augmentation.md specifies them. They depend only on the sample's key, which comes from the
order, the stage's index in the request and the transform's index in the stage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.order import transform_keys, uniform_draws

Draws = NDArray[np.float64]
"""``(images, draws)`` in [0, 1)."""


def draws_of(keys: NDArray[np.uint64], *, stage: int, place: int, count: int) -> Draws:
    """Return the draws of one transform.

    Args:
        keys: ``(images,)``: the samples' keys in the order.
        stage: The stage's index in the request.
        place: The transform's index in the stage.
        count: The number of draws per image.
    """
    return uniform_draws(transform_keys(keys, stage, place), count)
