"""The options of a load test, and the swarm that they describe."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from headrace.errors import TokenDatasetChangedError
from headrace.loadtest import Cut, Pause, Rescale, SwarmSpec
from headrace.order import AnyOrder, EndMode, epoch_positions
from headrace.v1 import shard_service_pb2 as pb

_PREFETCH_BYTES = 16 << 20  # per rank: a few batches
_MAX_PREFETCH_BYTES = 1 << 30  # for all ranks: a small part of a test machine's memory
_ENDLESS = 1 << 40  # steps, for a run that is limited in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command, as its help describes them."""

    targets: str
    dataset: str
    mixture: Path | None
    ranks: int
    jobs: int
    batch_size: int
    global_batch_size: int | None
    epochs: int | None
    steps: int | None
    seconds: float | None
    step_ms: float
    seed: int
    shuffle: bool
    order: Order
    end: str
    columns: tuple[str, ...]
    where: str
    transport: str
    processes: int | None
    manifests: Sequence[str]
    missing_as_null: bool
    tokens: int
    kills: Sequence[int]
    restart: str | None
    every: float
    rescales: Sequence[tuple[int, Rescale]]
    pauses: Sequence[Pause]
    crashes: Sequence[float]
    cuts: Sequence[Cut]
    access: Access
    give_up_s: float
    min_samples_per_s: float | None
    max_p99_ms: float | None
    picture: Path | None
    as_json: bool

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
        return [
            dataset.filter.sample_count if dataset.HasField("filter") else dataset.sample_count
            for dataset in self.datasets
        ]

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
        pauses=tuple(options.pauses),
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
    wheres = [dataset.filter.where for dataset in served.datasets]
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
