"""How errors name samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sample_title(shown: NDArray[np.int64]) -> str:
    """Return the name of a sample in errors, given its value in the column of sample ids."""
    *dataset, sample = shown.ravel().tolist()
    return f"sample {sample}" + (f" of the mixture's dataset {dataset[0]}" if dataset else "")
