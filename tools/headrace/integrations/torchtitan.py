"""torchtitan: a loader whose place lies in its checkpoints, whatever the data-parallel degree.

torchtitan's own loader keeps a state for each data-parallel rank, and refuses to load them on
another number of ranks. headrace's state is the same on every rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from headrace.client import Batch, BatchLoader, RemoteDataset, Sharding
from headrace.errors import BadArgumentError
from headrace.integrations.sources import Source, remote, training_set
from headrace.order import EndMode

try:
    from torchtitan.components.dataloader import BaseDataLoader
except ImportError as _error:  # pragma: no cover - tests have it, or skip
    raise ImportError(
        f"headrace.integrations.torchtitan needs torchtitan, which cannot be imported ({_error}): "
        "pip install torchtitan"
    ) from _error

__all__ = ["RemoteLoader", "remote", "trained"]

_PLACE = "place"

Microbatch = tuple[dict[str, torch.Tensor], torch.Tensor]


class RemoteLoader(BaseDataLoader):
    """Yields the microbatches of one data-parallel rank, epoch after epoch.

    A global batch of headrace is what one step of torchtitan takes, so that steps have the same
    samples for every data-parallel degree and local batch size. A checkpoint that is saved inside a
    step goes on with the whole step.
    """

    def __init__(
        self, loader: BatchLoader, *, local_batch_size: int, inputs: str, labels: str
    ) -> None:
        """Cut batches into microbatches.

        Args:
            loader: Reads batches of this rank.
            local_batch_size: Samples of a microbatch, >= 1; divides the batches.
            inputs: The column of the model's input.
            labels: The column of the labels.
        """
        self._loader, self._size = loader, local_batch_size
        self._inputs, self._labels = inputs, labels
        self._begun: dict[str, object] | None = None

    def __iter__(self) -> Iterator[Microbatch]:
        """Yield ``({"input": ...}, labels)``; whole numbers are int64, as torchtitan wants them."""
        if self._begun is not None:
            self._load(self._begun)
        before = self._loader.state_dict()
        has_more = True
        while has_more:
            has_more = False
            for batch in self._loader:
                has_more = True
                yield from self._microbatches(batch, before)
                before = self._loader.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last whole batch, the same on every rank.

        One text, since a checkpoint is loaded by the keys that the loader has before.
        """
        return {_PLACE: json.dumps(self._begun or self._loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            BadArgumentError: The state is another loader's.
        """
        if _PLACE not in state_dict:
            raise BadArgumentError(
                f"a loader's state has the keys {sorted(state_dict)}, and no {_PLACE!r} that says "
                "where the data was; resume from a checkpoint of a run that read its data through "
                "headrace, or give checkpoint.exclude_from_loading=['dataloader'] to begin with "
                "the first epoch",
                field="state_dict",
            )
        self._load(json.loads(state_dict[_PLACE]))

    def close(self) -> None:
        """Drop the connection and worker processes; the next loop continues."""
        self._loader.close()

    def _load(self, state: Mapping[str, object]) -> None:
        self._begun = None
        self._loader.load_state_dict(state)

    def _microbatches(self, batch: Batch, before: dict[str, object]) -> Iterator[Microbatch]:
        inputs = _tensor(batch, self._inputs).split(self._size)
        labels = _tensor(batch, self._labels).split(self._size)
        self._begun = before
        for number, (one, wanted) in enumerate(zip(inputs, labels, strict=True), 1):
            if number == len(inputs):
                self._begun = None
            yield {"input": one}, wanted


def trained(
    source: Source, *, inputs: str = "tokens", labels: str = "tokens.labels"
) -> Callable[..., RemoteLoader]:
    """Return what a ``TrainSpec`` takes as ``build_dataloader_fn``.

    Sizes and workers are those of ``job_config.training``. ``exclude_from_loading`` with
    ``"dataloader"`` begins with the first epoch.

    Args:
        source: What the ranks read: ``remote(target, name, ...)``, without sizes.
        inputs: The column that becomes ``input``.
        labels: The column that becomes the labels; -100 is ignored by torchtitan's losses.

    Raises:
        BadArgumentError: The source makes no dataset, or has sizes of its own. What is returned
            raises it, too, for sizes that do not divide one another.
    """
    found = {"batch_size", "sharding"} & set(getattr(source, "keywords", ()))
    if found:
        raise BadArgumentError(
            f"the source has {' and '.join(sorted(found))}; expected none, since the batches are "
            "those of job_config.training: local_batch_size and global_batch_size",
            field="source",
        )
    return partial(_built, source, inputs, labels)


def _built(
    source: Source,
    inputs: str,
    labels: str,
    *,
    dp_world_size: int,
    dp_rank: int,
    job_config: Any,
    tokenizer: Any = None,
) -> RemoteLoader:
    del tokenizer
    training = job_config.training
    size = _global_batch_size(training, dp_world_size)
    dataset = training_set(
        source,
        rank=dp_rank,
        world_size=dp_world_size,
        columns=list(dict.fromkeys([inputs, labels])),
        sharding=Sharding(global_batch_size=size),
    )
    _refuse_uneven(dataset)
    loader = BatchLoader(dataset, num_workers=training.dataloader.num_workers)
    return RemoteLoader(
        loader, local_batch_size=training.local_batch_size, inputs=inputs, labels=labels
    )


def _global_batch_size(training: Any, ranks: int) -> int:
    """Return the samples of a step, over all ranks."""
    smallest = int(training.local_batch_size) * ranks
    size = int(training.global_batch_size)
    if size < 0:
        return smallest
    if size % smallest:
        raise BadArgumentError(
            f"training.global_batch_size is {size}, which {ranks} data-parallel ranks cannot read "
            f"in microbatches of {training.local_batch_size}; expected a multiple of {smallest}",
            field="global_batch_size",
        )
    return size


def _refuse_uneven(dataset: RemoteDataset) -> None:
    """Refuse last batches that have fewer microbatches on some ranks, where a job would hang."""
    if dataset._reading.end is EndMode.UNEVEN:  # noqa: SLF001 - no public name says how it ends
        raise BadArgumentError(
            "the source has end='uneven', so ranks would get different numbers of microbatches at "
            "an epoch's end; expected 'drop_last' or 'pad'",
            field="end",
        )


def _tensor(batch: Batch, column: str) -> torch.Tensor:
    found = batch[column]
    if not isinstance(found, torch.Tensor):
        raise BadArgumentError(
            f"column {column!r} is no tensor, but {type(found).__name__}; expected numbers of one "
            "shape, such as the rows of `headrace index --pack-length`",
            field="columns",
        )
    return found if found.is_floating_point() else found.long()
