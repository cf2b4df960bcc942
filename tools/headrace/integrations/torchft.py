"""torchft: replicas train on the steps that they commit, whoever takes part in each.

A quorum says before each step who takes part in it. torchft's own sampler deals samples to the most
replicas that there may ever be, so that those of a replica that is away are lost; here each step's
global batch is divided among its participants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol

from headrace.client import RemoteDataset
from headrace.client.batch.results import Result
from headrace.errors import BadArgumentError

__all__ = ["StepBatches"]

_NONE: Any = object()


class _Manager(Protocol):
    """The part of ``torchft.Manager`` that says who takes part in a step."""

    def current_step(self) -> int: ...

    def participating_rank(self) -> int | None: ...

    def num_participants(self) -> int: ...

    def is_participating(self) -> bool: ...


class StepBatches(Generic[Result]):
    """Yields the batch of this replica for each step that torchft begins.

    Take one batch after the quorum of a step has started (``optimizer.zero_grad()``), and train on
    it until ``optimizer.step()``. A step that is not committed comes again, divided among those who
    take part then. Steps of the manager are steps of the dataset: a global batch for each.

    While a replica heals, it gets rows that others train on too: torchft leaves its gradients out.
    """

    def __init__(
        self,
        dataset: RemoteDataset[Result],
        manager: _Manager,
        *,
        group_rank: int = 0,
        group_size: int = 1,
    ) -> None:
        """Read a dataset by the steps of a manager.

        Args:
            dataset: Made with ``rank=0, world_size=1`` and ``Sharding(global_batch_size=...)``, the
                same on every replica. Later starts need no state of it; a job that goes on from
                checkpoints of torchft needs none either.
            manager: Of this replica group, a ``torchft.Manager``.
            group_rank: This process in its group, if those of a group get samples of their own.
            group_size: Processes of a group that do.
        """
        self._dataset, self._manager = dataset, manager
        self._group_rank, self._group_size = group_rank, group_size
        self._loop: Iterator[Result] = iter(())

    def __iter__(self) -> Iterator[Result]:
        """Return this."""
        return self

    def __next__(self) -> Result:
        """Wait for the quorum, and return this replica's share of the step.

        Raises:
            StopIteration: The dataset's epochs are over.
            BadArgumentError: The manager heals replicas that it counts as participants.
        """
        manager, size = self._manager, self._group_size
        rank = manager.participating_rank()
        if rank is not None and not manager.is_participating():
            raise BadArgumentError(
                "torchft counts this replica among the participants of the step and leaves its "
                "gradients out, since it starts with the weights of another: its samples would be "
                "lost; expected Manager(init_sync=False) with the same weights on all replicas, or "
                "Manager(use_async_quorum=False)",
                field="manager",
            )
        step = manager.current_step()
        self._dataset.reshard(
            rank=(rank or 0) * size + self._group_rank,
            world_size=manager.num_participants() * size,
            at_step=step,
        )
        self._dataset.committed(step - 1)
        batch = next(self._loop, _NONE)
        if batch is _NONE:
            # The end of an epoch; another loop has the next, if there is one.
            self._loop = iter(self._dataset)
            batch = next(self._loop, _NONE)
        if batch is _NONE:
            raise StopIteration
        return batch
