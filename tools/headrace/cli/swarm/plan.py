"""The options of a load test, and the swarm that they describe."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import click

from headrace.cli.options.shared import utf8_text
from headrace.client import (
    Access,
    Deadlines,
    Mixture,
    Order,
    Transport,
    fetch_dataset,
    read_mixture,
)
from headrace.client.options.where import kept_in
from headrace.errors import TokenDatasetChangedError
from headrace.loadtest import Cut, Pause, Rescale, SwarmSpec
from headrace.order import AnyOrder, EndMode, epoch_positions
from headrace.v1 import shard_service_pb2 as pb

_PREFETCH_BYTES = 16 << 20  # per rank: a few batches
_MAX_PREFETCH_BYTES = 1 << 30  # for all ranks: a small part of a test machine's memory
_ENDLESS = 1 << 40  # steps, for a run that is limited in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command.

    Attributes:
        mixture: JSON file that describes a mixture of datasets, instead of DATASET.
        ranks: Ranks per job.
        jobs: Number of simultaneous jobs, each with its own seed.
        batch_size: Samples per batch of each rank.
        epochs: Epochs to read; one if no other limit is given.
        steps: Steps to read, instead of epochs.
        seconds: Seconds to read, instead of epochs.
        step_ms: Milliseconds per training step; 0 reads as fast as possible.
        transport: How batches arrive: grpc; ring, which is shared memory, for a server's unix
            socket; lane, a connection beside gRPC's; or auto for the best that is available.
        processes: Number of processes for the ranks; one per core if it is not given.
        manifests: URL of the dataset, to compare every sample with its manifest. For a mixture,
            give one for each dataset, in its order.
        tokens: Number of tokens to resume with a second reader.
        kills: Kill this process, such as the server, during the run.
        restart: Command that starts a new process after each kill, to be killed next. Its output
            is discarded.
        every: Minimum seconds between two faults. A fault also waits until batches arrive again.
        rescales: Change the number of ranks during the run; 8:6@50% continues with 6 after half of
            it.
        pauses: Pause a rank during the run; 3:10@25% pauses rank 3 for 10 s after a quarter of it.
        crashes: Kill all ranks after this share of the steps, such as 40%, and resume them.
        cuts: Disturb the network through a built-in proxy: reset, blackhole:5, latency=0.02 or
            bandwidth=1048576.
        give_up_s: Seconds without a server after which a rank gives up.
        min_samples_per_s: Fail if all ranks together receive fewer samples per second.
        max_p99_ms: Fail if the 99th percentile of the wait for a batch is longer.
        picture: Plot the run as PNG or SVG.
        dark: Draw the picture on a dark background.
        as_json: Print one JSON object at the end.
    """

    targets: str
    dataset: str
    mixture: Path | None = None
    ranks: int = 8
    jobs: int = 1
    batch_size: int = 256
    global_batch_size: int | None
    epochs: int | None = None
    steps: int | None = None
    seconds: float | None = None
    step_ms: float = 0.0
    seed: int
    shuffle: bool
    order: Order
    end: str
    columns: tuple[str, ...]
    where: str
    transport: str = "grpc"
    processes: int | None = None
    manifests: tuple[str, ...] = ()
    missing_as_null: bool
    tokens: int = 8
    kills: tuple[int, ...] = ()
    restart: str | None = None
    every: float = 5.0
    rescales: tuple[tuple[int, Rescale], ...] = ()
    pauses: tuple[Pause, ...] = field(default=(), metadata={"option": "--pause-rank"})
    crashes: tuple[float, ...] = field(default=(), metadata={"option": "--crash-at"})
    cuts: tuple[Cut, ...] = field(default=(), metadata={"option": "--cut-network"})
    access: Access
    give_up_s: float = 60.0
    min_samples_per_s: float | None = None
    max_p99_ms: float | None = None
    picture: Path | None = None
    dark: bool = False
    as_json: bool = field(default=False, metadata={"option": "--json"})

    def __post_init__(self) -> None:
        if bool(self.dataset) == (self.mixture is not None):
            raise click.UsageError("Give either DATASET or --mixture.")
        if self.where and self.mixture is not None:
            raise click.UsageError("--where: give each dataset its 'where' in the --mixture file.")
        if sum(given is not None for given in (self.epochs, self.steps, self.seconds)) > 1:
            raise click.UsageError("--epochs, --steps and --seconds exclude one another.")
        if self.restart is not None and not self.kills:
            raise click.UsageError("--restart needs --kill, the process to kill first.")
        ranks = self.ranks
        for old, rescale in self.rescales:
            if old != ranks:
                raise click.UsageError(
                    f"--rescale starts from {old} ranks, but there are {ranks} at that time."
                )
            ranks = rescale.ranks

    @property
    def restart_command(self) -> tuple[str, ...]:
        """Return the words of --restart; none without it."""
        try:
            return tuple(shlex.split(self.restart or ""))
        except ValueError as error:
            raise click.UsageError(
                f"--restart: {self.restart!r} is not a command ({error})."
            ) from error

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the targets as a list."""
        return tuple(filter(None, self.targets.split(",")))


@dataclass(frozen=True, slots=True)
class ServedDatasets:
    """The datasets to read, as the first server describes them.

    Attributes:
        datasets: The dataset, or those of the mixture in its order.
        mixture: The mixture with the version of each dataset; None for one dataset.
    """

    datasets: tuple[pb.Dataset, ...]
    mixture: Mixture | None = None

    @property
    def sample_counts(self) -> list[int]:
        """Return the number of samples to read in each dataset."""
        return [kept_in(dataset).sample_count for dataset in self.datasets]

    @property
    def stored_counts(self) -> list[int]:
        """Return the number of samples in each dataset."""
        return [dataset.sample_count for dataset in self.datasets]


def fetch_datasets(options: Options) -> ServedDatasets:
    """Ask the first server about the datasets to read."""
    mixture = None
    if options.mixture is not None:
        path = options.mixture
        text = utf8_text(lambda: path.read_text(encoding="utf-8"), option="--mixture")
        mixture = read_mixture(text)
        if any(entry.skips for entry in mixture.datasets):
            raise click.UsageError("--mixture: a load test does not support 'skips'.")
    wanted = [(options.dataset, options.where)]
    if mixture is not None:
        wanted = [(entry.name, entry.where or "") for entry in mixture.datasets]
    deadlines = Deadlines(connect_s=options.give_up_s)
    found = tuple(
        fetch_dataset(
            options.addresses[0], name, deadlines=deadlines, access=options.access, where=where
        )
        for name, where in wanted
    )
    if mixture is not None:
        mixture = mixture.pinned([dataset.fingerprint for dataset in found])
    return ServedDatasets(found, mixture)


def swarm_spec(options: Options, served: ServedDatasets) -> SwarmSpec:
    """Return the swarm that the options describe."""
    size = options.global_batch_size or options.batch_size * options.ranks
    trainers = options.ranks * options.jobs
    order = options.order.spec(seed=options.seed, shuffle=options.shuffle, unit=size)
    mixture, counts = served.mixture, served.sample_counts
    spec = SwarmSpec(
        targets=options.addresses,
        dataset=options.dataset,
        mixture=mixture,
        first_ids=tuple(accumulate(served.stored_counts[:-1], initial=0)),
        sample_count=(
            counts[0] if mixture is None else epoch_positions(mixture.spec(order), counts)
        ),
        order=order,
        global_batch_size=size,
        ranks=options.ranks,
        jobs=options.jobs,
        steps=options.steps or 1,
        end=EndMode(options.end),
        columns=options.columns,
        where=options.where,
        step_s=options.step_ms / 1e3,
        seconds=options.seconds,
        prefetch_bytes=min(_PREFETCH_BYTES, _MAX_PREFETCH_BYTES // trainers),
        transport=Transport(options.transport).kind,
        processes=options.processes or min(os.cpu_count() or 1, trainers),
        rescales=tuple(rescale for _, rescale in options.rescales),
        pauses=options.pauses,
        crashes=tuple(sorted(options.crashes)),
        deadlines=Deadlines(connect_s=options.give_up_s, give_up_s=options.give_up_s),
        access=options.access,
    )
    if options.steps is not None:
        return spec
    whole = spec.plan.batch_count * (options.epochs or 1)
    return replace(spec, steps=whole if options.seconds is None else _ENDLESS)


def expected_orders(
    served: ServedDatasets, spec: SwarmSpec, urls: Sequence[str], *, missing_as_null: bool
) -> Sequence[AnyOrder]:
    """Return the order of each job, from the manifests and the columns that filters need."""
    # Only this needs the [storage] extra.
    from headrace.cli.stored.shard_tables import read_tables  # noqa: PLC0415

    if len(urls) != len(served.datasets):
        raise click.UsageError(
            f"--manifest is given {len(urls)} times; expected {len(served.datasets)}, one for "
            "each dataset in the mixture's order."
        )
    wheres = [kept_in(dataset).where for dataset in served.datasets]
    tables = read_tables(urls, wheres, missing_as_null=missing_as_null)
    for dataset, fingerprint, url in zip(served.datasets, tables.fingerprints, urls, strict=True):
        if fingerprint != dataset.fingerprint:
            raise TokenDatasetChangedError(
                f"the server's dataset {dataset.name!r} has fingerprint {dataset.fingerprint}, but "
                f"the manifest at {url} has {fingerprint}; give --manifest the version that is "
                "served"
            )
    jobs = [replace(spec.order, seed=spec.order.seed + job) for job in range(spec.jobs)]
    mixture = served.mixture
    if mixture is None:
        return [tables.order(order) for order in jobs]
    return [tables.mixture(mixture.spec(order)) for order in jobs]
