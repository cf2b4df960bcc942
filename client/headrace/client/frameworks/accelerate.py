"""What Hugging Face Accelerate must not do with a dataset, and what it asks of a loader.

Trainer is built on Accelerate, so this holds for both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from headrace.client.frameworks.callers import ACCELERATE, callers
from headrace.errors import BadArgumentError

_STATE = "accelerate.state"
_TRAINER = "transformers.trainer"
_Result = TypeVar("_Result")


class _Loader:
    """What ``gather_for_metrics`` looks at in the loader of the running loop.

    Attributes:
        end_of_dataloader: Whether the loop has got the last batch.
        remainder: Samples of that batch over all ranks, repeats left out; 0 if it is full.
    """

    end_of_dataloader = False
    remainder = -1


def known_to_accelerate(
    results: Iterator[_Result], remainder: Callable[[], int | None]
) -> Generator[_Result, None, None]:
    """Yield what a loop gets, and let Accelerate know the repeats in its last batch.

    ``gather_for_metrics`` joins what ranks give it in their order, and cuts this to the remainder
    if the loop has got the last batch.

    Args:
        results: What the loop gets, from a padded dataset.
        remainder: Returns None before the last batch, and its `_Loader.remainder` after it.
    """
    state = getattr(sys.modules.get(_STATE), "GradientState", None)
    if state is None or not state._shared_state:  # noqa: SLF001 - whether there is an Accelerator
        yield from results
        return
    loader, loaders = _Loader(), state()
    loaders._add_dataloader(loader)  # noqa: SLF001 - as its own loaders do; nothing public does
    try:
        for result in results:
            if (count := remainder()) is not None:
                loader.end_of_dataloader, loader.remainder = True, count
            yield result
    finally:
        loaders._remove_dataloader(loader)  # noqa: SLF001


def refuse_prepared() -> None:
    """Refuse to be read by a loader that Accelerate prepared: its samples are wrong.

    By default, such a loader reads in the first process only and splits its batches among all. It
    also reads one batch ahead of the loop, so a state would be one batch too late.

    Raises:
        BadArgumentError: The caller is a prepared loader.
    """
    names = [(module, frame.f_code.co_name) for module, frame in callers()]
    if (ACCELERATE, "__iter__") not in names:
        return
    advice = _TRAINERS if any(module == _TRAINER for module, _ in names) else _ACCELERATES
    raise BadArgumentError(
        "a RemoteDataset is read through a DataLoader that accelerate prepared, which would split "
        "one rank's batches among all ranks and read one batch ahead of the loop; "
        f"expected {advice}",
        field="dataset",
    )


_ACCELERATES = (
    "headrace.integrations.accelerate.trained(accelerator, ...), or a loop over the dataset itself "
    "or a headrace.client.BatchLoader, which prepare() keeps as it is, with "
    "rank=accelerator.process_index and world_size=accelerator.num_processes"
)
_TRAINERS = (
    "headrace.integrations.transformers.RemoteTrainer in place of Trainer, which prepares no "
    "loader of headrace's and resumes where the checkpoint was saved"
)
