"""What a trainer tells about itself: one JSON line an event, on its standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """All ranks are connected.

    Attributes:
        first_step: Steps that the checkpoint had done; 0 for a new training.
        world_size: Number of ranks.
    """

    first_step: int
    world_size: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """All ranks did one step.

    Attributes:
        epoch: The epoch, from 0.
        step: Steps of the run before this one.
        loss: Mean over the global batch, before the step.
        accuracy: The same of the share of samples that the model got right.
        seconds: From asking for the batch to the end of the step, waiting for other ranks included.
        finished_at: Wall clock, seconds since 1970.
        reconnect_count: How often this rank tried to open its stream again since it started.
    """

    epoch: int
    step: int
    loss: float
    accuracy: float
    seconds: float
    finished_at: float
    reconnect_count: int


@dataclass(frozen=True, slots=True)
class EpochDone:
    """The test after an epoch.

    Attributes:
        epoch: The epoch, from 0.
        test_accuracy: Share of the test samples that the model got right, in [0, 1].
    """

    epoch: int
    test_accuracy: float


Event = TrainerReady | StepDone | EpochDone
_KINDS: Mapping[str, type[Event]] = {
    kind.__name__: kind for kind in (TrainerReady, StepDone, EpochDone)
}


def to_json(event: Event) -> str:
    """Write an event as one line, without the line break."""
    return json.dumps({"event": type(event).__name__, **asdict(event)})


def from_json(line: str) -> Event:
    """Read what `to_json` wrote.

    Raises:
        ValueError: The line is no event.
    """
    try:
        fields = json.loads(line)
        return _KINDS[fields.pop("event")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no event of a trainer: {line!r}") from error


def to_text(event: Event) -> str:
    """Say an event to a person."""
    match event:
        case TrainerReady():
            return f"{event.world_size} ranks ready at step {event.first_step}"
        case StepDone():
            return (
                f"epoch {event.epoch} step {event.step} loss {event.loss:.4f} "
                f"accuracy {event.accuracy:.3f}"
            )
        case EpochDone():
            return f"epoch {event.epoch} done, test accuracy {event.test_accuracy:.4f}"
