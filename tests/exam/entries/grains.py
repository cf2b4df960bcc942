"""Grain: a MapDataset behind its ElasticIterator, which splits and batches for any ranks.

Resuming: google-grain.readthedocs.io, "Checkpointing"; ranks: `grain.experimental.ElasticIterator`;
mixtures: `MapDataset.mix`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np
from grain import experimental

from exam.entry import Batch, NotOffered
from exam.job import KIND, ROW_TOKENS, Job, document
from exam.pictures import decoded
from exam.rows import Rows, write_rows

write = append = write_documents = write_rows
_BINS = 16  # of rows that are filled at once


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open an iterator over all epochs; the state of any rank is that of all."""
    del epoch  # it is in the state
    parts = [grain.MapDataset.source(Rows(folder)).seed(job.seed) for folder in job.folders]
    if job.shuffle:
        parts = [part.shuffle() for part in parts]
    dataset = parts[0]
    if len(parts) > 1:
        dataset = grain.MapDataset.mix(parts, weights=[1 / len(parts)] * len(parts))
    samples = len(dataset)
    options = grain.MultiprocessingOptions(num_workers=job.workers) if job.workers else None
    iterator = iter(
        experimental.ElasticIterator(
            dataset.map(_arrays).repeat(job.epochs),
            job.batch * job.world,
            grain.sharding.ShardOptions(job.rank, job.world),
            multiprocessing_options=options,
        )
    )
    if states:
        iterator.set_state(states[0])
    return _Stream(iterator, samples)


def open_packed(job: Job, epoch: int, states: Sequence[Any]) -> _Rows:
    """Open rows that each rank packs from its share of the documents, with its own state."""
    del epoch
    if states and len(states) != job.world:
        raise NotOffered("an ElasticIterator takes no dataset that packs")
    documents = grain.MapDataset.source(Rows(job.folders[0])).seed(job.seed)
    if job.shuffle:
        documents = documents.shuffle()
    share = documents[job.rank :: job.world].map(_tokens).to_iter_dataset()
    rows = experimental.FirstFitPackIterDataset(
        share, length_struct={"tokens": ROW_TOKENS}, num_packing_bins=_BINS, seed=job.seed
    ).batch(job.batch)
    if job.workers:
        rows = rows.mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers))
    iterator = iter(rows)
    if states:
        iterator.set_state(states[job.rank])
    return _Rows(iterator)


def _tokens(sample: tuple[int, bytes]) -> dict[str, Any]:
    return {"tokens": np.array(document(sample[0]), np.int32)}


def _arrays(sample: tuple[int, bytes]) -> dict[str, Any]:
    value = decoded(sample[1]) if KIND == "images" else np.frombuffer(sample[1], np.uint8)
    return {"id": np.int64(sample[0]), "x": value}


class _Stream:
    def __init__(self, iterator: Any, samples: int) -> None:
        self._iterator = iterator
        self._samples = samples

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield batches up to the end of an epoch, which the iterator itself does not mark."""
        end = (number + 1) * self._samples
        while self.state()["global_next_index"] < end:
            batch = next(self._iterator, None)
            if batch is None:
                return
            rows = batch["x"]
            yield (
                batch["id"].tolist(),
                rows if KIND == "images" else [row.tobytes() for row in rows],
            )

    def state(self) -> Any:
        return self._iterator.get_state()


class _Rows:
    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def epoch(self, number: int) -> Iterator[Batch]:
        del number
        for batch in self._iterator:
            tokens = batch["tokens"]
            yield tokens[tokens != 0].tolist(), []

    def state(self) -> Any:
        return self._iterator.get_state()
