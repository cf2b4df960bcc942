"""The specification of a load test."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headrace.client import Access, BatchEvent, Deadlines, Mixture, ReadOptions
from headrace.client.options.where import where_stages
from headrace.errors import BadArgumentError
from headrace.order import EndMode, EpochPlan, OrderSpec, RankBatch

SAMPLE_IDS = "headrace.sample_id"


@dataclass(frozen=True, slots=True)
class Rescale:
    """Stop all ranks at a step, and continue with another number of ranks.

    Attributes:
        ranks: The new world size.
        share: The share of the run's steps after which this happens, in (0, 1).
    """

    ranks: int
    share: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause one rank, like a straggler.

    Attributes:
        rank: The rank to pause in every job.
        seconds: The duration of the pause.
        share: The share of the run's steps after which this happens, in [0, 1).
    """

    rank: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Generation:
    """The ranks between two rescales.

    Attributes:
        world_size: Number of ranks.
        first_step: The first step, counted from the start of the run.
        end_step: The step after the last.
    """

    world_size: int
    first_step: int
    end_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmSpec:
    """A swarm of simulated trainers.

    Attributes:
        targets: gRPC addresses of servers that serve the same data.
        dataset: The name of the dataset; empty for a mixture.
        mixture: The datasets to draw from instead of ``dataset``, each with its version.
        first_ids: For each dataset of the mixture, the number of samples before it.
        sample_count: The number of samples in an epoch.
        order: The order of the first job; job j adds j to the seed.
        global_batch_size: Samples per batch over all ranks.
        ranks: The world size at the start.
        jobs: The number of jobs, each with its own seed.
        steps: The steps of each job, >= 1, across epochs.
        end: How to handle an incomplete last batch.
        columns: Columns to read; empty for all.
        where: The filter for samples of ``dataset``; empty for all.
        step_s: Seconds that a simulated training step takes.
        seconds: Seconds after which every rank stops, or None.
        prefetch_bytes: Bytes that one rank reads ahead.
        transport: How batches arrive, as for `RemoteDataset`.
        processes: The number of processes for the ranks.
        rescales: When the number of ranks changes, in order.
        pauses: The pauses of ranks.
        crashes: Shares of the run's steps after which all processes of the swarm are killed with
            SIGKILL and continue from the last checkpoint.
        checkpoint_steps: Steps between two checkpoints.
        token_samples: The number of tokens that each rank keeps, to resume from.
        deadlines: How long a rank waits before it gives up.
        access: How to authenticate.
    """

    targets: tuple[str, ...]
    dataset: str
    mixture: Mixture | None = None
    first_ids: tuple[int, ...] = ()
    sample_count: int
    order: OrderSpec
    global_batch_size: int
    ranks: int
    jobs: int = 1
    steps: int
    end: EndMode = EndMode.DROP_LAST
    columns: tuple[str, ...] = ()
    where: str = ""
    step_s: float = 0.0
    seconds: float | None = None
    prefetch_bytes: int = 16 << 20
    transport: str = "grpc"
    processes: int = 1
    rescales: tuple[Rescale, ...] = ()
    pauses: tuple[Pause, ...] = ()
    crashes: tuple[float, ...] = ()
    checkpoint_steps: int = 10
    token_samples: int = 2
    deadlines: Deadlines = field(default_factory=Deadlines)
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        """Refuse a swarm that cannot run."""
        if self.plan.batch_count < 1:
            raise BadArgumentError(
                f"the dataset has {self.sample_count} samples, less than one global batch of "
                f"{self.global_batch_size}; use a smaller batch, or --end uneven",
                field="global_batch_size",
            )
        if self.seconds is not None and (self.rescales or self.pauses or self.crashes):
            raise BadArgumentError(
                "a run that is limited in seconds cannot rescale, pause or crash at a share of its "
                "steps; give epochs or steps instead",
                field="seconds",
            )
        last_rank = max([self.ranks, *(rescale.ranks for rescale in self.rescales)]) - 1
        for pause in self.pauses:
            if pause.rank > last_rank:
                raise BadArgumentError(
                    f"rank {pause.rank} cannot pause; expected a rank in [0, {last_rank}]",
                    field="pauses",
                )
        shares = [rescale.share for rescale in self.rescales]
        if shares != sorted(set(shares)) or any(not 0 < share < 1 for share in shares):
            raise BadArgumentError(
                f"rescales happen at {shares} of the run; expected increasing shares in (0, 1)",
                field="rescales",
            )

    @property
    def plan(self) -> EpochPlan:
        """Return how an epoch is cut into global batches."""
        return EpochPlan(
            sample_count=self.sample_count,
            base=0,
            global_batch_size=self.global_batch_size,
            end=self.end,
        )

    def generations(self) -> list[Generation]:
        """Return the generations of the run, divided at its rescales."""
        steps = [max(1, int(self.steps * rescale.share)) for rescale in self.rescales]
        sizes = [self.ranks, *(rescale.ranks for rescale in self.rescales)]
        cuts = zip(sizes, [0, *steps], [*steps, self.steps], strict=True)
        return [Generation(size, first, end) for size, first, end in cuts if end > first]

    def options(self, *, job: int, rank: int, world_size: int) -> ReadOptions:
        """Return the options with which one rank reads."""
        return ReadOptions(
            dataset=self.dataset,
            stages=where_stages(self.where) if self.mixture is None else (self.mixture,),
            order=replace(self.order, seed=self.order.seed + job),
            global_batch_size=self.global_batch_size,
            rank=rank,
            world_size=world_size,
            end=self.end,
            columns=self.columns,
            with_ids=True,
        )

    def part(self, position: int, *, rank: int, world_size: int) -> RankBatch:
        """Return a rank's part of the global batch that starts at ``position``."""
        index = position // self.global_batch_size
        return self.plan.batch(index, rank=rank, world_size=world_size)

    def sample_ids(self, event: BatchEvent) -> NDArray[np.int64]:
        """Return the ids of a batch's samples, without pads.

        The id of a mixture's sample is its id in its dataset plus the samples of earlier datasets.
        """
        header = event.header
        ids = np.asarray(event.columns[SAMPLE_IDS].values)[: header.sample_count - header.pad_count]
        if self.mixture is None:
            return ids
        datasets, own = ids.T
        joined: NDArray[np.int64] = np.asarray(self.first_ids, dtype=np.int64)[datasets] + own
        return joined

    def batch_at(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step of the run, and the index of its global batch."""
        return divmod(step, self.plan.batch_count)
