"""Resume some tokens of the ranks, and compare the next batches with the run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.client import BatchEvent, BatchReader, BufferPool, Place
from headrace.errors import HeadraceError
from headrace.loadtest.swarm.rank import NextBatch
from headrace.loadtest.swarm.records import order_sum
from headrace.loadtest.swarm.spec import SwarmSpec
from headrace.loadtest.swarm.swarm import SwarmResult


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """The results of resuming tokens.

    Attributes:
        tokens: The number of tokens that a second reader resumed.
        wrong: The number of tokens after which the next batch differed from the run or was missing.
        examples: Some of the wrong tokens, in words.
    """

    tokens: int
    wrong: int
    examples: tuple[str, ...] = ()


def check_tokens(
    swarm: SwarmResult, *, targets: Sequence[str], most: int, seed: int = 0
) -> TokenCheck:
    """Resume a random choice of the tokens that the ranks kept.

    Args:
        swarm: The results of the swarm.
        targets: The servers to resume from.
        most: The maximum number of tokens to resume.
        seed: The seed of the choice.
    """
    kept = [following for result in swarm.results for following in result.next_batches]
    chosen = random.Random(seed).sample(kept, min(most, len(kept)))
    sizes = [generation.world_size for generation in swarm.generations]
    spec = replace(swarm.spec, targets=tuple(targets))
    faults = [
        fault
        for following in chosen
        if (fault := _fault(spec, following, sizes[following.seat.generation]))
    ]
    return TokenCheck(tokens=len(chosen), wrong=len(faults), examples=tuple(faults[:5]))


def _fault(spec: SwarmSpec, wanted: NextBatch, size: int) -> str:
    seat = wanted.seat
    reader = BatchReader(
        spec.targets,
        spec.options(job=seat.job, rank=seat.rank, world_size=size),
        place=Place(token=wanted.token),
        deadlines=spec.deadlines,
        allocate=BufferPool(idle_bytes=0).take,
        access=spec.access,
    )
    where = (
        f"the token before epoch {wanted.epoch} position {wanted.position} of job {seat.job} rank "
        f"{seat.rank}"
    )
    try:
        for event in reader.events():
            if isinstance(event, BatchEvent):
                return "" if _is_wanted(spec, event, wanted, size) else f"{where}: another batch"
    except HeadraceError as error:
        return f"{where}: {error}"
    finally:
        reader.close()
    return f"{where}: the stream ended"


def _is_wanted(spec: SwarmSpec, event: BatchEvent, wanted: NextBatch, world_size: int) -> bool:
    header = event.header
    sample_ids = spec.sample_ids(event)
    place = (header.epoch, header.position, sample_ids.size)
    if place != (wanted.epoch, wanted.position, wanted.sample_count):
        return False
    part = spec.part(header.position, rank=wanted.seat.rank, world_size=world_size)
    digest = order_sum(sample_ids, epoch=header.epoch, start=part.start)
    return digest == wanted.order_sum
