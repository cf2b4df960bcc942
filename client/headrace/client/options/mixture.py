"""Mixtures: datasets of a server, and how much of each is drawn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from headrace.arguments import (
    flag,
    instance,
    instance_or_none,
    number,
    one_of,
    text,
    whole,
    whole_or_none,
)
from headrace.client.options.arguments import where_of
from headrace.client.options.selection import Selection
from headrace.client.options.skips import Skip, SkipArgument, skip_choice
from headrace.client.options.stage import OrderStage
from headrace.client.options.where import where_stages
from headrace.errors import BadArgumentError
from headrace.order import (
    Batching,
    Choice,
    MixtureDataset,
    MixtureSpec,
    OrderSpec,
    Schedule,
    Skips,
)
from headrace.v1 import mixtures_pb2 as pb
from headrace.v1.stages import packed

_BATCHINGS = {
    Batching.RANDOM: pb.BATCHING_RANDOM,
    Batching.STRATIFIED: pb.BATCHING_STRATIFIED,
    Batching.PER_DATASET: pb.BATCHING_PER_DATASET,
}
_CHOICES = {Choice.FRESH: pb.CHOICE_FRESH, Choice.FIXED: pb.CHOICE_FIXED}
# Stands for an unknown version where only the other options matter.
_NO_FINGERPRINT = "0" * 32
_COUNT_LIMIT = 1 << 42


@dataclass(frozen=True, slots=True)
class MixtureEntry:
    """One dataset of a mixture; docs/order.md has the arithmetic.

    Give at most one of `proportion`, `repeat` and `choose`; without any, each sample is drawn once
    per epoch, unless there is a schedule.

    Attributes:
        name: The dataset's name on the server; its URL for a private server.
        proportion: Weight relative to the other datasets' proportions, >= 0.
        repeat: Draws per epoch as a multiple of the dataset's samples; may be below 1.
        choose: Draws per epoch.
        choice: Which samples to draw if an epoch does not draw all: different ones in each epoch
            (``fresh``), or always the same (``fixed``).
        granularity: With a fixed choice, how many neighbours are chosen together.
        fingerprint: The version to read; empty for the current one, or the loaded state's.
        skips: Samples of the dataset to leave out: their ids in it, or the digest of a list that
            the server has.
        token_skips: The skips of the token, if others replace them.
        where: An expression that says which of its samples to draw from, as for `RemoteDataset`.
    """

    name: str
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    choice: Literal["fresh", "fixed"] = "fresh"
    granularity: int = 1
    fingerprint: str = ""
    skips: SkipArgument = None
    token_skips: SkipArgument = None
    where: str | None = None

    def __post_init__(self) -> None:
        """Refuse wrong types; the order checks ranges."""
        text("MixtureEntry.name", self.name, wanted="the name of a dataset, or its URL")
        for name in ("proportion", "repeat"):
            if getattr(self, name) is not None:
                number(f"MixtureEntry.{name}", getattr(self, name), least=0)
        choose = whole_or_none("MixtureEntry.choose", self.choose, low=0, high=_COUNT_LIMIT)
        granularity = whole("granularity", self.granularity, low=1, high=_COUNT_LIMIT)
        object.__setattr__(self, "choose", choose)
        object.__setattr__(self, "granularity", granularity)
        one_of("choice", self.choice, [choice.value for choice in Choice])
        where_of(self.where, field="MixtureEntry.where")
        instance("MixtureEntry.fingerprint", self.fingerprint, str, wanted="a str")


@dataclass(frozen=True, slots=True)
class Mixture(OrderStage):
    """Several datasets that are drawn from together.

    Attributes:
        datasets: The datasets; their order matters.
        batching: How the samples of a unit are composed: ``random``, ``stratified`` (every unit
            has the exact proportions) or ``per_dataset`` (every unit is of one dataset).
        epoch_size: Samples per epoch, with proportions or a schedule; 0 for the sum over all
            datasets.
        schedule: Weights over the run, in samples since its start, instead of proportions.
        allow_new_skips: Whether a loaded state may have shorter lists of skips, all of which are in
            the entries' ``skips``.

    Examples:
        >>> web, own = MixtureEntry("web", proportion=3), MixtureEntry("numbers", proportion=1)
        >>> Mixture((web, own)).title
        'web + numbers'
    """

    datasets: tuple[MixtureEntry, ...]
    batching: Literal["random", "stratified", "per_dataset"] = "random"
    epoch_size: int = 0
    schedule: Schedule | None = None
    allow_new_skips: bool = False

    def __post_init__(self) -> None:
        """Refuse a mixture that no server can draw from."""
        object.__setattr__(self, "datasets", _entries_of(self.datasets))
        epoch_size = whole("epoch_size", self.epoch_size, low=0, high=_COUNT_LIMIT)
        object.__setattr__(self, "epoch_size", epoch_size)
        one_of("batching", self.batching, [batching.value for batching in Batching])
        instance_or_none("schedule", self.schedule, Schedule, wanted="a Schedule, or None")
        flag("allow_new_skips", self.allow_new_skips)
        self.spec(OrderSpec())

    @property
    def title(self) -> str:
        """The datasets in words, for messages."""
        names = [entry.name for entry in self.datasets]
        return " + ".join(names if len(names) <= _TITLE_NAMES else [*names[:_TITLE_NAMES], "…"])

    def skips_digest(self, first_ids: Sequence[int]) -> str:
        """Return the digest of the skips, as tokens contain it.

        Args:
            first_ids: The id in the mixture of each dataset's first sample.

        Raises:
            BadArgumentError: A list is named by its digest, so its ids are not known here.
        """
        joined: list[int] = []
        for entry, first in zip(self.datasets, first_ids, strict=False):
            choice = skip_choice(entry.skips)
            if choice is None or not choice.digest:
                continue
            if not choice.sample_ids:
                raise BadArgumentError(
                    f"the skips of {entry.name!r} are given by digest, so there is no state before "
                    "the first batch; give their ids, or take the state later",
                    field="skips",
                )
            joined += [first + sample for sample in choice.sample_ids]
        return Skips(joined).digest if joined else ""

    def pinned(self, fingerprints: Sequence[str]) -> Mixture:
        """Return the mixture with the version of each dataset."""
        pairs = zip(self.datasets, fingerprints, strict=True)
        return replace(self, datasets=tuple(replace(entry, fingerprint=f) for entry, f in pairs))

    def spec(self, order: OrderSpec) -> MixtureSpec:
        """Return the mixture in the order's form; unknown versions are zeros.

        Raises:
            BadArgumentError: An option is out of range; ``metadata["field"]`` names it.
        """
        return MixtureSpec(
            datasets=tuple(_member(entry) for entry in self.datasets),
            order=order,
            batching=_known("batching", self.batching, Batching),
            epoch_size=self.epoch_size,
            schedule=self.schedule,
        )

    def to_message(self) -> pb.Mixture:
        """Write the mixture down for the wire."""
        spec = self.spec(OrderSpec())
        message = pb.Mixture(
            batching=_BATCHINGS[spec.batching],
            epoch_size=spec.epoch_size,
        )
        for member, entry in zip(spec.datasets, self.datasets, strict=True):
            message.datasets.append(_message(member, entry, allow_new=self.allow_new_skips))
        if self.schedule is not None:
            for start, weights in zip(self.schedule.starts, self.schedule.weights, strict=True):
                message.schedule.add(start=start, weights=weights.tolist())
        return message

    def to_json(self) -> dict[str, object]:
        """Return the mixture as values that JSON can hold."""
        schedule = None
        if self.schedule is not None:
            weights = self.schedule.weights.tolist()
            schedule = {"starts": list(self.schedule.starts), "weights": weights}
        return {
            "datasets": [_entry_fields(entry) for entry in self.datasets],
            "batching": self.batching,
            "epoch_size": self.epoch_size,
            "schedule": schedule,
        }


_TITLE_NAMES = 4
_PAIR = 2
_DATASET = (
    "the dataset's name, a Selection, a Mixture, or a list of pairs of name and weight such as "
    '[("web", 0.7), ("books", 0.3)]'
)


def source_of(dataset: object) -> Selection | Mixture:
    """Return what an argument means: pairs are names and proportions.

    Raises:
        BadArgumentError: The argument is not a mixture that can be drawn from.
    """
    if isinstance(dataset, str):
        return Selection(text("dataset", dataset, wanted=_DATASET))
    if isinstance(dataset, Selection | Mixture):
        return dataset
    if isinstance(dataset, bytes | Mapping | AbstractSet) or not isinstance(dataset, Iterable):
        raise BadArgumentError(
            f"dataset is of type {type(dataset).__name__}; expected {_DATASET}", field="dataset"
        )
    entries = []
    for at, pair in enumerate(dataset):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != _PAIR:
            raise BadArgumentError(
                f"dataset[{at}] is {str(pair)[:100]!r}; expected {_DATASET}", field="dataset"
            )
        entries.append(MixtureEntry(pair[0], proportion=pair[1]))
    return Mixture(tuple(entries))


def _entries_of(datasets: object) -> tuple[MixtureEntry, ...]:
    if isinstance(datasets, str | bytes | Mapping | AbstractSet) or not isinstance(
        datasets, Iterable
    ):
        raise BadArgumentError(
            f"the mixture's datasets are of type {type(datasets).__name__}; expected a list of "
            "MixtureEntry(name, …)",
            field="datasets",
        )
    wanted = "MixtureEntry(name, …)"
    return tuple(
        instance(f"datasets[{at}]", entry, MixtureEntry, wanted=wanted)
        for at, entry in enumerate(datasets)
    )


def read_mixture(text: str) -> Mixture:
    """Read a mixture from JSON: an object with the fields of `Mixture`; only one is required.

    Raises:
        BadArgumentError: The text is not such an object, or a value in it is out of range.
    """
    instance("mixture", text, str, wanted="the text of a JSON object")
    try:
        return mixture_from(json.loads(text))
    except ValueError as error:
        raise BadArgumentError(
            f"the mixture is not JSON: {error}; expected one such as "
            '{"datasets": [{"name": "web", "proportion": 0.7}, …]}',
            field="mixture",
        ) from error


def mixture_from(fields: Mapping[str, Any]) -> Mixture:
    """Make a mixture from JSON values.

    Raises:
        BadArgumentError: The values have another form, or one is impossible.
    """
    try:
        given = dict(fields)
        schedule = given.pop("schedule", None)
        given["datasets"] = tuple(MixtureEntry(**entry) for entry in given["datasets"])
        if schedule is not None:
            weights = np.array(schedule["weights"], np.float64)
            schedule = Schedule(tuple(schedule["starts"]), weights)
        return Mixture(**given, schedule=schedule)
    except (KeyError, TypeError, ValueError) as error:
        raise BadArgumentError(
            f"the mixture cannot be read ({error}); expected an object with 'datasets', a list of "
            "objects with 'name' and one of 'proportion', 'repeat', 'choose'",
            field="mixture",
        ) from error


def _entry_fields(entry: MixtureEntry) -> dict[str, object]:
    fields = asdict(entry)
    for name in ("skips", "token_skips"):
        choice = skip_choice(fields[name])
        fields[name] = None if choice is None else choice.to_json()
    return fields


def _member(entry: MixtureEntry) -> MixtureDataset:
    return MixtureDataset(
        name=entry.name,
        fingerprint=entry.fingerprint or _NO_FINGERPRINT,
        proportion=entry.proportion,
        repeat=entry.repeat,
        choose=entry.choose,
        choice=_known("choice", entry.choice, Choice),
        granularity=entry.granularity,
    )


def _message(member: MixtureDataset, entry: MixtureEntry, *, allow_new: bool) -> pb.MixtureDataset:
    skips, token_skips = skip_choice(entry.skips), skip_choice(entry.token_skips)
    stages: list[OrderStage] = [*where_stages(entry.where)]
    if skips is not None:
        stages.append(Skip(skips, allow_new, token_skips))
    return pb.MixtureDataset(
        name=member.name,
        fingerprint=entry.fingerprint,
        proportion=member.proportion,
        repeat=member.repeat,
        choose=member.choose,
        choice=_CHOICES[member.choice],
        granularity=member.granularity,
        stages=[packed(stage.to_message()) for stage in stages],
    )


_Names = TypeVar("_Names", Batching, Choice)


def _known(field: str, name: str, names: type[_Names]) -> _Names:
    try:
        return names(name)
    except ValueError:
        wanted = ", ".join(each.value for each in names)
        raise BadArgumentError(
            f"{field} is {name!r}; expected one of {wanted}", field=field
        ) from None
