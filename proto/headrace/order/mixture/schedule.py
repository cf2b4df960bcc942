"""Schedules: the weights of a mixture's datasets over the samples of a run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError

PIECE_SAMPLES: Final = 16
"""The least samples in a piece of a linear stretch; servers bound shorter ones in schedules."""

# A linear stretch becomes this many pieces; each makes 0.4 % of the whole change of a weight.
_LINEAR_PIECES: Final = 256
_START_LIMIT: Final = 1 << 42
# Weights become integers whose sum is at most this, so that products with 21 bits fit in 64.
_WEIGHT_SUM: Final = 1 << 40
_LENGTH_BITS: Final = 21


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Piecewise constant weights; the last piece never ends.

    Attributes:
        starts: Where each piece starts, in samples since the start of the run, rising from 0.
        weights: (pieces, datasets) float64, finite and >= 0, not all 0 in any piece. Only ratios
            within a piece matter.
    """

    starts: tuple[int, ...]
    weights: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or len(self.weights) != len(self.starts):  # noqa: PLR2004 - axes
            raise BadArgumentError(
                f"weights have the shape {self.weights.shape}, must be ({len(self.starts)},"
                " datasets)",
                field="schedule",
            )
        if self.starts[:1] != (0,) or self.starts[-1] >= _START_LIMIT:
            raise BadArgumentError(
                f"a schedule starts at {self.starts[:1]} and its last piece at {self.starts[-1:]}, "
                "must be at 0 and below 2**42",
                field="schedule",
            )
        if any(
            after <= before for before, after in zip(self.starts, self.starts[1:], strict=False)
        ):
            raise BadArgumentError("the starts of a schedule must increase", field="schedule")
        if not (np.isfinite(self.weights).all() and (self.weights >= 0).all()):
            raise BadArgumentError("weights must be finite and not negative", field="schedule")
        if not self.weights.any(axis=1).all():
            raise BadArgumentError(
                "a piece of the schedule has no weight above 0", field="schedule"
            )

    def shares(self, piece: int) -> NDArray[np.int64]:
        """Return the prefix sums of a piece's weights as integers: (datasets + 1,) int64.

        Each weight becomes round(weight * floor(2**40 / datasets) / greatest weight), and at
        least 1 if it is not 0.
        """
        weights = self.weights[piece]
        scaled = np.rint(weights * (_WEIGHT_SUM // len(weights) / weights.max())).astype(np.int64)
        sums = np.zeros(len(weights) + 1, np.int64)
        np.cumsum(np.maximum(scaled, weights > 0), out=sums[1:])
        return sums


def piecewise(starts: Sequence[int], weights: Sequence[Sequence[float]]) -> Schedule:
    """Return a schedule of constant pieces.

    Args:
        starts: Where each piece starts, in samples since the start of the run; the first is 0.
        weights: For each piece, a weight for each dataset.
    """
    return Schedule(tuple(starts), np.array(weights, np.float64, ndmin=2))


def linear(knots: Sequence[int], weights: Sequence[Sequence[float]]) -> Schedule:
    """Return a schedule that interpolates linearly between knots.

    Each stretch has 256 pieces, or fewer where they would have less than 16 samples. A piece has
    the weights of its middle. The weights of the last knot hold forever.

    Args:
        knots: Samples since the start of the run, rising from 0.
        weights: For each knot, a weight for each dataset.

    Raises:
        BadArgumentError: The knots do not rise from 0, or have not as many weights.
    """
    values = np.array(weights, np.float64, ndmin=2)
    if not len(knots) == len(weights) > 0:
        raise BadArgumentError(
            f"a linear schedule has {len(knots)} knots and weights for {len(weights)}, must have "
            "weights for each of at least one knot",
            field="schedule",
        )
    starts: list[int] = []
    pieces: list[NDArray[np.float64]] = []
    for knot, (first, end) in enumerate(itertools.pairwise(knots)):
        count = max(min((end - first) // PIECE_SAMPLES, _LINEAR_PIECES), 1)
        change = values[knot + 1] - values[knot]
        for piece in range(count):
            starts.append(first + (end - first) * piece // count)
            pieces.append(values[knot] + change * ((piece + 0.5) / count))
    return Schedule((*starts, knots[-1]), np.array([*pieces, values[-1]]))


def apportion(length: int, shares: NDArray[np.int64]) -> NDArray[np.int64]:
    """Deal a number of draws to datasets by their weights.

    With prefix sums S, dataset d gets floor(length * S[d + 1] / S[-1]) - floor(length * S[d] /
    S[-1]). All together get `length`, and each is within one of its exact share.

    Args:
        length: Draws, in [0, 2**42).
        shares: (datasets + 1,) int64, prefix sums of the weights, up to 2**41.

    Returns:
        (datasets,) int64.
    """
    # In two steps, because length * share may exceed 64 bits.
    whole = int(shares[-1])
    high, low = length >> _LENGTH_BITS, length & ((1 << _LENGTH_BITS) - 1)
    quotients, rests = np.divmod(shares * high, whole)
    ends = (quotients << _LENGTH_BITS) + ((rests << _LENGTH_BITS) + shares * low) // whole
    return np.diff(ends)
