"""What a mixture is made from: its datasets, their weights and how batches are composed."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order.basics.checks import check_range
from headrace.order.mixture.schedule import Schedule
from headrace.order.samples.spec import OrderSpec, spec_differences

_FINGERPRINT = re.compile("[0-9a-f]{32}")
_DATASET_LIMIT = 1 << 20


class Batching(enum.Enum):
    """How each unit of samples is composed of datasets."""

    RANDOM = "random"
    """Datasets are drawn at random; over some thousand positions their proportions are exact."""
    STRATIFIED = "stratified"
    """Every unit has the exact proportions, apart from rounding to whole samples."""
    PER_DATASET = "per_dataset"
    """Every unit comes from a single dataset."""


class Choice(enum.Enum):
    """Which samples a dataset gives if an epoch does not draw all of them."""

    FRESH = "fresh"
    """Other samples each epoch: none is repeated before all have been drawn."""
    FIXED = "fixed"
    """The same samples each epoch, in another order."""


@dataclass(frozen=True, slots=True)
class MixtureDataset:
    """One dataset of a mixture.

    Give at most one of `proportion`, `repeat` and `choose`. Without them `repeat` is 1, or the
    mixture's schedule sets the weights.

    Attributes:
        name: Name of the dataset in errors and checkpoints.
        fingerprint: The dataset's fingerprint, 32 lower-case hexadecimal digits.
        proportion: Weight relative to the proportions of the other datasets.
        repeat: Draws in an epoch as a multiple of the dataset's samples; below 1 not all samples
            are drawn.
        choose: Draws in an epoch.
        choice: Which samples the dataset gives if an epoch does not draw all of them.
        granularity: With a fixed choice, the number of neighbours that are chosen together.
    """

    name: str
    fingerprint: str
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    choice: Choice = Choice.FRESH
    granularity: int = 1

    def __post_init__(self) -> None:
        if not self.name or "\n" in self.name:
            raise BadArgumentError(
                f"a dataset is named {self.name!r}, must have a name of one line", field="name"
            )
        if not _FINGERPRINT.fullmatch(self.fingerprint):
            raise BadArgumentError(
                f"fingerprint of {self.name} is {self.fingerprint!r}, must be 32 lower-case"
                " hexadecimal digits",
                field="fingerprint",
            )
        given = [
            name for name in ("proportion", "repeat", "choose") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise BadArgumentError(
                f"dataset {self.name} has {' and '.join(given)}, must have only one of them",
                field=given[1],
            )
        for name in given:
            amount = getattr(self, name)
            if not 0 <= amount < float(1 << 42):
                raise BadArgumentError(
                    f"{name} of {self.name} is {amount}, must be in [0, 2**42)", field=name
                )
        check_range("granularity", self.granularity, low=1, high=1 << 42)
        if self.choice is Choice.FIXED and self.choose is None and self.repeat is None:
            raise BadArgumentError(
                f"dataset {self.name} has a fixed choice, which needs choose or repeat",
                field="choice",
            )

    def draws(self, samples: int) -> int:
        """Return the draws in an epoch for a dataset of `samples` samples and no proportion."""
        if self.choose is not None:
            return self.choose
        return samples if self.repeat is None else round(self.repeat * samples)


@dataclass(frozen=True, slots=True)
class MixtureSpec:
    """Every option of a mixture's order; specs with equal digests give equal orders.

    Attributes:
        datasets: The datasets; their order matters.
        order: The options of the order, for all datasets; these share the shuffle's memory by
            their weights.
        batching: How units are composed.
        epoch_size: Positions of an epoch with proportions or a schedule; 0 means the samples of
            all datasets together.
        schedule: Weights over the run, in place of proportions.
    """

    datasets: tuple[MixtureDataset, ...]
    order: OrderSpec = field(default_factory=OrderSpec)
    batching: Batching = Batching.RANDOM
    epoch_size: int = 0
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        check_range("datasets", len(self.datasets), low=1, high=_DATASET_LIMIT)
        check_range("epoch_size", self.epoch_size, low=0, high=1 << 42)
        names = [dataset.name for dataset in self.datasets]
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise BadArgumentError(
                f"two datasets of the mixture share the name {twice[:100]!r}; expected each "
                "dataset once, with one weight or amount",
                field="datasets",
            )
        weighted = [dataset for dataset in self.datasets if dataset.proportion is not None]
        if self.schedule is not None:
            self._check_schedule(self.schedule)
        elif weighted and len(weighted) < len(self.datasets):
            raise BadArgumentError(
                f"{len(weighted)} of {len(self.datasets)} datasets have a proportion, must be "
                "all or none of them",
                field="proportion",
            )
        elif self.epoch_size and not weighted:
            raise BadArgumentError(
                f"epoch_size is {self.epoch_size}, but the datasets' repeat and choose set it",
                field="epoch_size",
            )

    def _check_schedule(self, schedule: Schedule) -> None:
        if schedule.weights.shape[1] != len(self.datasets):
            raise BadArgumentError(
                f"the schedule has weights for {schedule.weights.shape[1]} datasets, but the "
                f"mixture has {len(self.datasets)}",
                field="schedule",
            )
        for dataset in self.datasets:
            if not dataset.proportion is dataset.repeat is dataset.choose is None:
                raise BadArgumentError(
                    f"dataset {dataset.name} has an amount in addition to the schedule",
                    field="schedule",
                )

    def weights(self) -> Schedule | None:
        """Return the schedule in force; None if the draws of the datasets make up an epoch."""
        if self.schedule is not None or self.datasets[0].proportion is None:
            return self.schedule
        proportions = [dataset.proportion for dataset in self.datasets]
        return Schedule((0,), np.array([proportions], np.float64))

    @property
    def fingerprint(self) -> str:
        """The combined fingerprint of all datasets, in their order: 32 hexadecimal digits."""
        return combined_fingerprint([dataset.fingerprint for dataset in self.datasets])

    @property
    def digest(self) -> str:
        """Digest, for tokens, of everything but the order's options and the fingerprints."""
        digest = hashlib.blake2b(digest_size=16, person=b"headrace-mix")
        for line in _lines(self):
            digest.update(line.encode() + b"\n")
        if self.schedule is not None:
            digest.update(_little_endian(np.array(self.schedule.starts, np.int64)))
            digest.update(_little_endian(self.schedule.weights))
        return digest.hexdigest()


def combined_fingerprint(fingerprints: Sequence[str]) -> str:
    """Return the fingerprint of several datasets together, in their order."""
    digest = hashlib.blake2b(digest_size=16, person=b"headrace-datas")
    for fingerprint in fingerprints:
        digest.update(bytes.fromhex(fingerprint))
    return digest.hexdigest()


def mixture_differences(wanted: MixtureSpec, found: MixtureSpec) -> tuple[str, ...]:
    """Name every option and dataset in which two mixtures differ, with both values.

    Args:
        wanted: The mixture that was asked for.
        found: The mixture in the checkpoint.

    Returns:
        One phrase for each difference; empty if both give the same order.
    """
    differences = [
        f"{name}: {getattr(wanted, name)} requested, the token has {getattr(found, name)}"
        for name in ("batching", "epoch_size")
        if getattr(wanted, name) != getattr(found, name)
    ]
    differences += spec_differences(wanted.order, found.order)
    differences += _dataset_differences(wanted, found)
    if not differences and wanted.digest != found.digest:
        differences.append("schedule: the one requested differs from the token's")
    return tuple(differences)


def _dataset_differences(wanted: MixtureSpec, found: MixtureSpec) -> list[str]:
    names = [[dataset.name for dataset in spec.datasets] for spec in (wanted, found)]
    if names[0] != names[1]:
        added = sorted(set(names[0]) - set(names[1])) or "none"
        lost = sorted(set(names[1]) - set(names[0])) or "none"
        return [f"datasets: only requested {added}, only in the token {lost}, or in another order"]
    return [
        f"{ours.name}.{option.name}: {getattr(ours, option.name)} requested,"
        f" the token has {getattr(theirs, option.name)}"
        for ours, theirs in zip(wanted.datasets, found.datasets, strict=True)
        for option in dataclasses.fields(MixtureDataset)
        if getattr(ours, option.name) != getattr(theirs, option.name)
    ]


def _lines(spec: MixtureSpec) -> list[str]:
    lines = [f"{spec.batching.value} {spec.epoch_size}"]
    lines += [
        f"{_exact(dataset.proportion)} {_exact(dataset.repeat)} {dataset.choose}"
        f" {dataset.choice.value} {dataset.granularity} {dataset.name}"
        for dataset in spec.datasets
    ]
    return lines


def _exact(amount: float | None) -> str:
    return "None" if amount is None else float(amount).hex()


def _little_endian(array: NDArray[np.int64] | NDArray[np.float64]) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
