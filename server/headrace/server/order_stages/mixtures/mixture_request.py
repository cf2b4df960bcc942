"""Check mixtures in requests, and convert them to the order's specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from headrace.errors import BadArgumentError
from headrace.order import Batching, Choice, MixtureDataset, MixtureSpec, OrderSpec, Schedule
from headrace.order.mixture.schedule import PIECE_SAMPLES
from headrace.v1 import mixtures_pb2 as pb

# The first message of a stream names all of them, with about 100 bytes each.
MAX_DATASETS = 10_000
# The most pieces of a schedule: 16 linear stretches.
_MAX_PIECES = 4096
# One of a kind, and kinds are few.
_MAX_STAGES = 8

MIXTURE_LIMITS: Final[Mapping[str, int]] = {
    "Mixture.datasets": MAX_DATASETS,
    "Mixture.schedule": _MAX_PIECES,
    "MixtureDataset.stages": _MAX_STAGES,
    "SchedulePiece.weights": MAX_DATASETS,
}
"""The greatest length of each list, by its message and field."""

# What a piece costs when a batch comes to it, some milliseconds, is spread over its samples: 1,000
# pieces of one sample each took a server three seconds for 20 batches. Linear schedules are within
# the limit wherever 16 knots are.
_WINDOW_PIECES = 16
_WINDOW_SAMPLES = _WINDOW_PIECES * PIECE_SAMPLES

_Name = TypeVar("_Name")

_BATCHINGS: Mapping[int, Batching] = {
    pb.BATCHING_UNSPECIFIED: Batching.RANDOM,
    pb.BATCHING_RANDOM: Batching.RANDOM,
    pb.BATCHING_STRATIFIED: Batching.STRATIFIED,
    pb.BATCHING_PER_DATASET: Batching.PER_DATASET,
}
_CHOICES: Mapping[int, Choice] = {
    pb.CHOICE_UNSPECIFIED: Choice.FRESH,
    pb.CHOICE_FRESH: Choice.FRESH,
    pb.CHOICE_FIXED: Choice.FIXED,
}


def check_mixture(mixture: pb.Mixture) -> None:
    """Refuse a mixture without datasets or with too many, before looking for any.

    Raises:
        BadArgumentError: The mixture is empty or too large.
    """
    count = len(mixture.datasets)
    if not 1 <= count <= MAX_DATASETS:
        raise BadArgumentError(
            f"the mixture has {count} datasets; it must have 1 to {MAX_DATASETS}",
            field="mixture.datasets",
        )


def mixture_spec(mixture: pb.Mixture, order: OrderSpec, fingerprints: Sequence[str]) -> MixtureSpec:
    """Return the specification of a mixture.

    Args:
        mixture: The mixture as requested.
        order: Seed, memory, lanes and unit.
        fingerprints: The fingerprints of the datasets, in the order of the mixture.

    Raises:
        BadArgumentError: A field is outside its range; ``metadata["field"]`` names it.
    """
    try:
        return MixtureSpec(
            datasets=tuple(
                _dataset(dataset, fingerprint)
                for dataset, fingerprint in zip(mixture.datasets, fingerprints, strict=True)
            ),
            order=order,
            batching=_known(mixture.batching, _BATCHINGS, field="batching"),
            epoch_size=mixture.epoch_size,
            schedule=_schedule(mixture) if mixture.schedule else None,
        )
    except BadArgumentError as error:
        field = f"mixture.{error.metadata.get('field', '')}"
        raise BadArgumentError(f"mixture: {error.message}", field=field) from error


def _dataset(dataset: pb.MixtureDataset, fingerprint: str) -> MixtureDataset:
    amount = dataset.WhichOneof("amount")
    return MixtureDataset(
        name=dataset.name,
        fingerprint=fingerprint,
        proportion=dataset.proportion if amount == "proportion" else None,
        repeat=dataset.repeat if amount == "repeat" else None,
        choose=dataset.choose if amount == "choose" else None,
        choice=_known(dataset.choice, _CHOICES, field="choice"),
        granularity=dataset.granularity or 1,
    )


def _schedule(mixture: pb.Mixture) -> Schedule:
    wanted = len(mixture.datasets)
    starts = [piece.start for piece in mixture.schedule]
    for first, last in zip(starts, starts[_WINDOW_PIECES:], strict=False):
        if last - first < _WINDOW_SAMPLES:
            raise BadArgumentError(
                f"{_WINDOW_PIECES} pieces of the schedule from {first} on last for {last - first} "
                f"samples; they must last for at least {_WINDOW_SAMPLES}, so use fewer pieces",
                field="schedule",
            )
    for piece in mixture.schedule:
        if len(piece.weights) != wanted:
            raise BadArgumentError(
                f"the piece of the schedule at {piece.start} has {len(piece.weights)} weights, but "
                f"the mixture has {wanted} datasets",
                field="schedule",
            )
    return Schedule(
        tuple(piece.start for piece in mixture.schedule),
        np.array([list(piece.weights) for piece in mixture.schedule], np.float64),
    )


def _known(value: int, names: Mapping[int, _Name], *, field: str) -> _Name:
    if value not in names:
        raise BadArgumentError(f"{field} is {value}, which does not exist", field=field)
    return names[value]
