"""Make datasets for the rank that a framework knows of, and begin its epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ParamSpec

from headrace.arguments import shown
from headrace.client import RemoteDataset
from headrace.client.batch.results import Result
from headrace.errors import BadArgumentError
from headrace.order import EndMode

Source = Callable[..., RemoteDataset[Result]]
"""Makes a dataset of what it is called with: ``rank`` and ``world_size`` at least."""

_Options = ParamSpec("_Options")


def _later(
    make: Callable[_Options, RemoteDataset[Result]],
) -> Callable[_Options, Source[Result]]:
    def source(*options: _Options.args, **named: _Options.kwargs) -> Source[Result]:
        return partial(make, *options, **named)

    return source


remote = _later(RemoteDataset)
"""Takes what `RemoteDataset` takes, and returns a function that makes it when ranks are known."""

_EVALUATION: Mapping[str, Any] = {"shuffle": False, "end": "pad", "epochs": "same"}
"""Every rank gets batches of one size, and each loop all samples, once but for marked repeats."""


def training_set(
    source: Source[Result], *, rank: int, world_size: int, **options: Any
) -> RemoteDataset[Result]:
    """Make what one rank trains on.

    Raises:
        BadArgumentError: The source is none, or makes something else.
    """
    return _made(source, rank=rank, world_size=world_size, **options)


def evaluation_set(
    source: Source[Result], *, rank: int, world_size: int, batch_size: int | None = None
) -> RemoteDataset[Result]:
    """Make what one rank evaluates on: unshuffled, padded, and the same in every loop.

    Args:
        source: Makes it.
        rank: Of this process.
        world_size: Number of ranks.
        batch_size: Samples of a batch, whatever the source says; None for what it says.

    Raises:
        BadArgumentError: The source is none, or makes something else.
    """
    size = {} if batch_size is None else {"batch_size": batch_size}
    return _made(source, rank=rank, world_size=world_size, **size, **_EVALUATION)


def check_evaluation(dataset: RemoteDataset[Any]) -> None:
    """Refuse a dataset whose loops do not each have every sample.

    Raises:
        BadArgumentError: It lacks ``end="pad"`` or ``epochs="same"``.
    """
    reading = dataset._reading  # noqa: SLF001 - no public name says how a dataset ends
    if reading.end is not EndMode.PAD or not dataset._restart:  # noqa: SLF001 - nor that it repeats
        raise BadArgumentError(
            f"{reading.subject.title!r} is evaluated on, but its loops may leave samples out or "
            "end with batches of different sizes; make it with end='pad' and epochs='same'",
            field="eval_dataset",
        )


def begin_epoch(dataset: RemoteDataset[Any]) -> None:
    """Move to the next epoch if the loops so far left one early; a framework begins an epoch."""
    progress = dataset._progress  # noqa: SLF001 - the state says so too, but asks a server at first
    if progress.is_left:
        dataset.seek(progress.place.epoch + 1)


def _made(source: Source[Result], **told: Any) -> RemoteDataset[Result]:
    if not callable(source):
        raise BadArgumentError(
            f"a source is {shown(source)}, of type {type(source).__name__}; expected a function "
            "that makes a dataset, such as remote(target, name, ...) or one of your own that takes "
            "rank and world_size, since ranks are not known before the framework has started",
            field="source",
        )
    dataset = source(**told)
    if not isinstance(dataset, RemoteDataset):
        raise BadArgumentError(
            f"a source made {shown(dataset)}, of type {type(dataset).__name__}; expected a "
            "RemoteDataset",
            field="source",
        )
    return dataset
