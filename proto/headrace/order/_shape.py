"""The constants of order version 1 that differ between one dataset and a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """How finely storage is mixed.

    Attributes:
        band_parts: Parts of a band, at least.
        window_runs: A run is at most this part of a window.
        sort_limit: Windows of more samples are permuted by a Feistel network.
        ramp: Whether the first window of each lane is served as small ones that double.
    """

    band_parts: int
    window_runs: int
    sort_limit: int
    ramp: bool


# Chosen from docs/shuffle-quality.md. 2**18 numbers sort in 1 ms with AVX-512, 15 ms without.
ONE_DATASET: Final = Shape(band_parts=128, window_runs=256, sort_limit=1 << 18, ramp=True)
# A batch of a mixture touches all its datasets at once, so each must open in little work; they
# mix one another, so each may be mixed less finely.
MIXTURE: Final = Shape(band_parts=16, window_runs=64, sort_limit=1 << 6, ramp=False)
