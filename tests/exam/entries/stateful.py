"""torchdata: a StatefulDataLoader over a map-style dataset, with its own distributed sampler.

Resuming: meta-pytorch.org/data/0.11/stateful_dataloader_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchdata.stateful_dataloader import (  # type: ignore[import-untyped] # no py.typed
    StatefulDataLoader,
)
from torchdata.stateful_dataloader.sampler import (  # type: ignore[import-untyped] # the same
    StatefulDistributedSampler,
)

from exam.entry import Batch, NotOffered
from exam.job import Job
from exam.rows import Rows, columns, write_rows

write = append = write_rows


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open a loader, with the state of the same rank."""
    if len(job.folders) > 1:
        raise NotOffered("mixtures are in torchdata.nodes, not for map-style datasets")
    if states and len(states) != job.world:
        raise NotOffered(
            "a state is of its rank: it is aggregated across workers, not across ranks"
        )
    sampler: Any = StatefulDistributedSampler(
        Rows(job.folders[0]), job.world, job.rank, shuffle=job.shuffle, seed=job.seed
    )
    sampler.set_epoch(epoch)
    loader = StatefulDataLoader(
        sampler.dataset,
        batch_size=job.batch,
        sampler=sampler,
        num_workers=job.workers,
        collate_fn=columns,
    )
    if states:
        loader.load_state_dict(states[job.rank])
    return _Stream(loader, sampler)


class _Stream:
    def __init__(self, loader: Any, sampler: Any) -> None:
        self._loader = loader
        self._sampler = sampler

    def epoch(self, number: int) -> Iterator[Batch]:
        self._sampler.set_epoch(number)
        yield from self._loader

    def state(self) -> Any:
        return self._loader.state_dict()
