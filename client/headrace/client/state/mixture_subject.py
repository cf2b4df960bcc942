"""Samples of several datasets, which a mixture draws."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from headrace.client.options.mixture import Mixture, mixture_from
from headrace.client.options.skips import SkipChoice, skip_choice
from headrace.client.options.stage import OrderStage
from headrace.client.options.where import dataset_request, kept_in
from headrace.client.state.subject import Subject
from headrace.errors import BadArgumentError, TokenMalformedError, TokenSpecChangedError
from headrace.order import (
    OrderSpec,
    Stages,
    Token,
    epoch_positions,
    joined_digest,
    mixture_differences,
    stages_of,
)
from headrace.v1 import shard_service_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSubject(Subject):
    """Samples of several datasets.

    Attributes:
        mixture: The mixture, with the versions of its datasets if they are known.
    """

    mixture: Mixture

    @property
    def title(self) -> str:
        return self.mixture.title

    @property
    def stages(self) -> tuple[OrderStage, ...]:
        return (self.mixture,)

    def requests(self) -> list[pb.GetDatasetRequest]:
        return [
            dataset_request(entry.name, entry.fingerprint, entry.where)
            for entry in self.mixture.datasets
        ]

    def epoch_sample_count(self, order: OrderSpec) -> int:
        return epoch_positions(self.mixture.spec(order), self.sample_counts)

    def token_start(self, order: OrderSpec) -> tuple[str, Stages]:
        spec = self.mixture.spec(order)
        firsts = [0, *itertools.accumulate(self.stored_counts)]
        skips = self.mixture.skips_digest(firsts)
        return spec.fingerprint, stages_of(mixture=spec.digest, filter=self.kept, skips=skips)

    def at(self, token: Token, saved: Mapping[str, object]) -> MixtureSubject:
        found = _mixture_in(saved)
        mixture = self.mixture if found is None else _continued(self.mixture, found)
        spec = mixture.spec(token.spec)
        if spec.digest != token.stage("mixture"):
            differences = () if found is None else mixture_differences(spec, found.spec(token.spec))
            raise TokenSpecChangedError(
                "the state belongs to another mixture"
                + (": " + "; ".join(differences) if differences else "")
                + ". Make the dataset with the mixture of its run, or start a new run without it"
            )
        return MixtureSubject(mixture=mixture)

    def to_json(self) -> dict[str, object]:
        return {"mixture": self.mixture.to_json()}

    def _skips(self) -> list[SkipChoice | None]:
        return [skip_choice(entry.skips) for entry in self.mixture.datasets]

    def _in_versions(self, found: Sequence[pb.Dataset]) -> Self:
        mixture = self.mixture.pinned([dataset.fingerprint for dataset in found])
        kept = joined_digest([kept_in(dataset).digest for dataset in found])
        return replace(self, mixture=mixture, kept=kept)


def _mixture_in(saved: Mapping[str, object]) -> Mixture | None:
    fields = saved.get("mixture")
    if not isinstance(fields, Mapping):
        return None
    try:
        return mixture_from(fields)
    except BadArgumentError as error:
        raise TokenMalformedError(f"the state: {error}") from error


def _continued(mixture: Mixture, found: Mixture) -> Mixture:
    """Return the mixture with the versions and skips of a run."""
    known = {entry.name: entry for entry in found.datasets}
    return replace(
        mixture,
        datasets=tuple(
            replace(
                entry,
                fingerprint=entry.fingerprint or known[entry.name].fingerprint,
                token_skips=known[entry.name].skips,
                skips=known[entry.name].skips if entry.skips is None else entry.skips,
                where=known[entry.name].where if entry.where is None else entry.where,
            )
            if entry.name in known
            else entry
            for entry in mixture.datasets
        ),
    )
