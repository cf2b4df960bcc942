"""Claims about planning ahead: when a stream asks for blocks of batches that come later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.readers import Flag
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.plan.planned_batches import Planned, planned_samples
from headrace.server.plan.prefetch_blocks import Lookahead, ReadAhead
from headrace.server.telemetry.metrics import Metrics
from headrace.storage import open_dataset
from support.datasets import write_manifest

_BLOCK_BYTES = 1 << 20
_BATCHES = 6


class _Stream:
    """The lookahead of a stream over a cold cache; its batches have no block in common.

    Attributes:
        planned: Batches that were planned so far.
        waiter: The stream's handle in the cache.
    """

    def __init__(
        self, url: str, cache: BlockCache, *, batch_blocks: int, budget_bytes: int, together: int
    ) -> None:
        self.planned = 0
        self._batch_blocks = batch_blocks
        self._together = together
        dataset = open_dataset(url)
        served = ServedDataset("absent", dataset, cache=cache, max_batch_bytes=1 << 20)
        blocks = served.blocks(cache)
        self.waiter = blocks.waiter()
        self.lookahead = Lookahead(
            self._plans(served),
            blocks=blocks,
            waiter=self.waiter,
            budget_bytes=lambda: budget_bytes,
            read_ahead=ReadAhead(foreseen_samples=1 << 20),
        )

    def _plans(self, served: ServedDataset) -> Iterator[Planned]:
        each = np.split(np.arange(_BATCHES * self._batch_blocks), _BATCHES)
        batches = [planned_samples(sample_ids, served.dataset) for sample_ids in each]
        starts = range(1, _BATCHES, self._together)
        groups = [batches[start : start + self._together] for start in starts]
        for group in (batches[:1], *groups):
            self.planned += len(group)
            yield group, None


def _stream(
    folder: Path,
    cache: BlockCache,
    *,
    batch_blocks: int,
    budget_bytes: int = 1 << 40,
    together: int = 1,
) -> _Stream:
    """Make a stream of batches of that many blocks of 1 MiB, one sample each."""
    ones = np.ones((_BATCHES, batch_blocks), np.int64)
    write_manifest(str(folder), ones, ones * _BLOCK_BYTES, stored_bytes=_BLOCK_BYTES)
    return _Stream(
        str(folder), cache, batch_blocks=batch_blocks, budget_bytes=budget_bytes, together=together
    )


@pytest.fixture
def cache() -> Iterator[BlockCache]:
    """A cache that finds no shard, so that every block that is asked for stays missing."""
    cache = BlockCache(1 << 24, fetch_threads=1, observer=Metrics())
    yield cache
    cache.close()


def test_a_first_batch_that_waits_for_much_has_the_store_for_itself(
    tmp_path: Path, cache: BlockCache
) -> None:
    """Nothing of later batches is asked for while a first one waits for more than 32 MiB.

    The next batch is what says that the wait is over; from then on the stream plans ahead.
    """
    stream = _stream(tmp_path, cache, batch_blocks=33)

    stream.lookahead.take()
    stream.lookahead.advance()
    alone = stream.planned
    stream.lookahead.take()
    stream.lookahead.advance()

    assert (1, _BATCHES) == (alone, stream.planned)


def test_later_batches_are_asked_for_beside_a_small_first_one(
    tmp_path: Path, cache: BlockCache
) -> None:
    """While a small first batch waits, later ones are asked for up to 32 MiB in all, or just over.

    With all that a budget allows, 224 MiB were read before a first batch of images came.
    """
    stream = _stream(tmp_path, cache, batch_blocks=12)

    stream.lookahead.take()
    stream.lookahead.advance()
    beside = stream.planned
    stream.lookahead.take()
    stream.lookahead.advance()

    assert (3, _BATCHES) == (beside, stream.planned)


def test_a_later_batch_does_not_wait_alone(tmp_path: Path, cache: BlockCache) -> None:
    """Only a stream's first batch has the store for itself, however much others wait for."""
    stream = _stream(tmp_path, cache, batch_blocks=40)

    stream.lookahead.take()
    stream.lookahead.take()
    stream.lookahead.advance()

    assert _BATCHES == stream.planned


def test_batches_are_foreseen_in_their_order(tmp_path: Path, cache: BlockCache) -> None:
    """Those too that were planned before the cache began to fill, and not yet asked for."""
    stream = _stream(tmp_path, cache, batch_blocks=1, budget_bytes=1, together=3)

    stream.lookahead.take()
    stream.waiter.filling = Flag(is_filling=True)
    stream.lookahead.take()

    foreseen = [{*np.hstack([blocks for _, blocks in plan])} for plan in stream.waiter.plan()]
    assert [{1}, {2}, {3}, {4}, {5}] == foreseen
