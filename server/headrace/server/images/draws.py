"""The random numbers of a transform, for all images of a batch at once.

docs/augmentation.md specifies them. They depend on the sample's key, which the order gives, on the
step's place in the request and on the transform's place in the step, and on nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.order import transform_keys, uniform_draws

Draws = NDArray[np.float64]
"""``(images, draws)`` in [0, 1)."""


def draws_of(keys: NDArray[np.uint64], *, step: int, place: int, count: int) -> Draws:
    """Return the draws of one transform.

    Args:
        keys: ``(images,)``: the samples' keys in the order.
        step: The step's place among all of the request.
        place: The transform's place in the step.
        count: How many draws each image has.
    """
    return uniform_draws(transform_keys(keys, step, place), count)
