"""Hugging Face Accelerate: a loader that ``prepare`` keeps, and ``save_state`` takes along.

A loader that Accelerate prepares itself deals one rank's batches to all ranks and reads one ahead
of the loop, and its place is in no checkpoint unless torchdata's stateful loader is chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.client import BatchLoader
from headrace.client.batch.results import Result
from headrace.errors import BadArgumentError
from headrace.integrations.sources import Source, evaluation_set, remote, training_set

try:
    from accelerate import Accelerator
except ImportError as _error:  # pragma: no cover - tests have it
    raise ImportError(
        "headrace.integrations.accelerate needs Accelerate, which is not installed here: "
        "pip install accelerate"
    ) from _error

__all__ = ["evaluated", "remote", "trained"]


class _Loader(BatchLoader[Result]):
    # Accelerate saves and loads the state of a loader that has this.
    use_stateful_dataloader = True


def trained(
    accelerator: Accelerator, source: Source[Result], *, workers: int = 0
) -> BatchLoader[Result]:
    """Make a loader to train on, and let ``save_state`` and ``load_state`` keep its place.

    Each ``for`` yields the rest of the current epoch; ``load_state`` goes on with the next sample,
    on any number of ranks. It needs no ``prepare``, which would keep it as it is.

    Args:
        accelerator: Whose ranks read.
        source: What they read: ``remote(target, name, ...)``.
        workers: Worker processes that receive, >= 0.

    Raises:
        BadArgumentError: The source makes no dataset. ``load_state`` raises it, too, if what it
            loads does not say where the data was.
    """
    dataset = training_set(source, **_ranks(accelerator))
    accelerator.register_load_state_pre_hook(_expect_place)
    return _prepared(accelerator, _Loader(dataset, num_workers=workers))


def evaluated(accelerator: Accelerator, source: Source[Result]) -> BatchLoader[Result]:
    """Make a loader to evaluate on: ``gather_for_metrics`` gets every sample once in each loop."""
    return BatchLoader(evaluation_set(source, **_ranks(accelerator)))


def _expect_place(models: Any, folder: str) -> None:
    """Refuse what Accelerate would load without a word, and then begin with the first epoch."""
    del models
    if not [*Path(folder).glob("dl_state_dict*.bin")]:
        raise BadArgumentError(
            f"{folder} has no dl_state_dict.bin, so it does not say where the data was; load what "
            "was saved by an accelerator with a loader of trained(), or begin without load_state",
            field="input_dir",
        )


def _prepared(accelerator: Any, loader: BatchLoader[Result]) -> BatchLoader[Result]:
    prepared: BatchLoader[Result] = accelerator.prepare(loader)
    return prepared


def _ranks(accelerator: Any) -> dict[str, int]:
    return {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
