"""Ray Train: loaders of this worker, whose place lies in the metadata of Ray's checkpoints.

``prepare_data_loader`` reads one batch ahead of the loop, so that a place would be one batch too
far; and Ray's checkpoints hold what a loop writes into them, and no place in the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.client import BatchLoader
from headrace.client.batch.results import Result
from headrace.client.frameworks.callers import callers
from headrace.errors import BadArgumentError
from headrace.integrations.sources import Source, evaluation_set, remote, training_set

try:
    from ray import train
except ImportError as _error:  # pragma: no cover - tests have it, or skip
    raise ImportError(
        f"headrace.integrations.ray needs Ray Train, which cannot be imported ({_error}): "
        "pip install 'ray[train]'"
    ) from _error

__all__ = ["RemoteLoader", "evaluated", "remote", "report", "trained"]

_PLACE = "headrace"
_PREPARED = "torch.train_loop_utils"


class RemoteLoader(BatchLoader[Result]):
    """Reads a worker's batches; each ``for`` yields the rest of the current epoch."""

    def __iter__(self) -> Iterator[Result]:  # type: ignore[override] # torch says its private class
        """Yield batches: `Batch`, or what ``transform=`` makes of them.

        Raises:
            BadArgumentError: ``prepare_data_loader`` has prepared it.
        """
        if any(name.startswith("ray.") and name.endswith(_PREPARED) for name, _ in callers()):
            raise BadArgumentError(
                "the loader was prepared by prepare_data_loader(), which reads one batch ahead of "
                "the loop, so that a checkpoint would leave a batch out; expected the loader as "
                "trained() returned it, and remote(..., device='cuda') for batches on a GPU",
                field="data_loader",
            )
        return super().__iter__()


def trained(source: Source[Result], *, workers: int = 0) -> RemoteLoader[Result]:
    """Make a loader to train on, which goes on from the checkpoint that Ray gives its workers.

    Each ``for`` yields the rest of the current epoch. To be called in a worker of Ray Train.

    Args:
        source: What the workers read: ``remote(target, name, ...)``.
        workers: Processes of this worker that receive, >= 0.

    Raises:
        BadArgumentError: The source makes no dataset, or the checkpoint does not say where the
            data was.
    """
    loader = RemoteLoader(training_set(source, **_ranks()), num_workers=workers)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        loader.load_state_dict(_place(checkpoint))
    return loader


def evaluated(source: Source[Result]) -> RemoteLoader[Result]:
    """Make a loader to evaluate on: each loop has every sample once, but for `Batch.is_pad`."""
    return RemoteLoader(evaluation_set(source, **_ranks()))


def report(
    loader: BatchLoader[Any], metrics: dict[str, Any], checkpoint: Any = None, **options: Any
) -> None:
    """Call ``ray.train.report``; the checkpoint says where the data was.

    Args:
        loader: Of `trained`. Its place is that after the last batch that the loop got.
        metrics: As for Ray.
        checkpoint: As for Ray; its metadata get the place, the same on every worker.
        **options: As for Ray.
    """
    if checkpoint is not None:
        checkpoint.update_metadata({_PLACE: loader.state_dict()})
    train.report(metrics, checkpoint=checkpoint, **options)


def _place(checkpoint: Any) -> Mapping[str, object]:
    place: Mapping[str, object] | None = checkpoint.get_metadata().get(_PLACE)
    if place is None:
        raise BadArgumentError(
            f"the metadata of {checkpoint} have no {_PLACE!r}, so it does not say where the data "
            "was; restore what was reported by headrace.integrations.ray.report(), whose files "
            "this worker must be able to read, or start a new run under another name",
            field="checkpoint",
        )
    return place


def _ranks() -> dict[str, int]:
    context = train.get_context()
    return {"rank": context.get_world_rank(), "world_size": context.get_world_size()}
