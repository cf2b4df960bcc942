"""Mixtures as JSON in checkpoints, so that an error can say what differs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from headrace.errors import BadArgumentError
from headrace.order.mixture.mixture import Batching, Choice, MixtureDataset, MixtureSpec
from headrace.order.mixture.schedule import Schedule
from headrace.order.samples.spec import OrderSpec


def dump_mixture(spec: MixtureSpec) -> str:
    """Write a mixture as JSON.

    Returns:
        A JSON object with the fields of the spec. `load_mixture` returns a spec of equal digest.
    """
    schedule = None
    if spec.schedule is not None:
        schedule = {"starts": spec.schedule.starts, "weights": spec.schedule.weights.tolist()}
    datasets = [
        {**dataclasses.asdict(dataset), "choice": dataset.choice.value} for dataset in spec.datasets
    ]
    return json.dumps(
        {
            "datasets": datasets,
            "order": dataclasses.asdict(spec.order),
            "batching": spec.batching.value,
            "epoch_size": spec.epoch_size,
            "schedule": schedule,
        }
    )


def load_mixture(text: str) -> MixtureSpec:
    """Read a mixture that `dump_mixture` wrote.

    Raises:
        BadArgumentError: The text is not such a mixture, or a value is not valid.
    """
    try:
        fields: dict[str, Any] = json.loads(text)
        schedule = fields["schedule"]
        return MixtureSpec(
            datasets=tuple(
                MixtureDataset(**{**dataset, "choice": Choice(dataset["choice"])})
                for dataset in fields["datasets"]
            ),
            order=OrderSpec(**fields["order"]),
            batching=Batching(fields["batching"]),
            epoch_size=fields["epoch_size"],
            schedule=None
            if schedule is None
            else Schedule(tuple(schedule["starts"]), np.array(schedule["weights"], np.float64)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadArgumentError(
            f"the text of {len(text)} characters is not a mixture: {error}", field="mixture"
        ) from error
