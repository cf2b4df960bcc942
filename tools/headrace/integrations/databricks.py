"""Databricks AI Runtime: its DataLoader over headrace, with a state that fits any number of ranks.

``databricks.air.data.DataLoader`` times each batch for MLflow. Its state holds the number of ranks
and of worker processes, and it refuses others; and a state that is taken at the beginning of an
epoch, before the first batch, says nothing, so that training would begin with the first epoch.
"""

from __future__ import annotations

from typing import Any

from headrace.client.options.ranks import resolve_ranks
from headrace.errors import BadArgumentError
from headrace.integrations.sources import Source, evaluation_set, remote, training_set

try:
    from databricks.air.data import DataLoader
except ImportError as _error:  # pragma: no cover - tests have it, or skip
    raise ImportError(
        "headrace.integrations.databricks needs the data utilities of Databricks AI Runtime, which "
        f"cannot be imported ({_error}): pip install 'databricks-sdk-air[data]'"
    ) from _error

__all__ = ["RemoteLoader", "evaluated", "remote", "trained"]


class RemoteLoader(DataLoader):
    """Databricks' DataLoader over a `RemoteDataset`, read in this process.

    Each ``for`` yields the rest of the current epoch. Times of batches are in the active run of
    MLflow, as ``dataloader/fetch_seconds/rank_0`` and ``dataloader/between_next_seconds/rank_0``.
    """

    def __init__(self, dataset: Any) -> None:
        """Take the dataset's batches as they are."""
        # No prefetch_factor may be given without workers, and the default is 4.
        super().__init__(dataset, batch_size=None, num_workers=0, prefetch_factor=None)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch that the loop got, the same on every rank."""
        state: dict[str, Any] = self.dataset.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there with the next ``for``, on any number of ranks.

        Raises:
            BadArgumentError: The state is that of another loader.
        """
        if "per_worker" in state_dict:
            raise BadArgumentError(
                "the state is one of databricks.air.data.DataLoader, which says where the worker "
                "processes of one rank were in other data; expected what state_dict() of a loader "
                "of headrace.integrations.databricks returned",
                field="state_dict",
            )
        self.dataset.load_state_dict(state_dict)


def trained(source: Source[Any]) -> RemoteLoader:
    """Make a loader to train on, for this rank of torch.distributed or of the launcher.

    Args:
        source: What the ranks read: ``remote(target, name, ...)``.

    Raises:
        BadArgumentError: The source makes no dataset.
    """
    return RemoteLoader(training_set(source, **_ranks()))


def evaluated(source: Source[Any]) -> RemoteLoader:
    """Make a loader to evaluate on: each loop has every sample once, but for `Batch.is_pad`."""
    return RemoteLoader(evaluation_set(source, **_ranks()))


def _ranks() -> dict[str, int]:
    rank, world_size = resolve_ranks(None, None)
    return {"rank": rank, "world_size": world_size}
