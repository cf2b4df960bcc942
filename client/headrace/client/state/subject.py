"""What a dataset object reads, in which version: samples of one dataset, or of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from headrace.arguments import shown
from headrace.client.options.arguments import where_of
from headrace.client.options.selection import Selection
from headrace.client.options.skips import Skip, SkipChoice, skip_choice
from headrace.client.options.stage import OrderStage
from headrace.client.options.where import Where, dataset_request, kept_in
from headrace.errors import BadArgumentError, TokenMalformedError, TokenSpecChangedError
from headrace.order import OrderSpec, Skips, Stages, Token, check_within, stages_of
from headrace.v1 import shard_service_pb2 as pb

Fetch = Callable[[Sequence[pb.GetDatasetRequest]], list[pb.Dataset]]
"""Asks a server for datasets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(ABC):
    """What is read, and in which version, if that is known.

    Attributes:
        name: The dataset's name on the server; empty for a mixture.
        sample_counts: Number of kept samples of each dataset; empty if unknown.
        stored_counts: Number of all samples of each dataset; for packed rows, of documents.
        kept: Digest of the samples that the filters keep; empty without one.
    """

    name: str = ""
    sample_counts: tuple[int, ...] = ()
    stored_counts: tuple[int, ...] = ()
    kept: str = ""

    @property
    def title(self) -> str:
        """Return its name in messages."""
        return self.name

    @property
    @abstractmethod
    def stages(self) -> tuple[OrderStage, ...]:
        """Return the stages of the order that requests for it have."""

    @abstractmethod
    def requests(self) -> list[pb.GetDatasetRequest]:
        """Return a request for each dataset, with its version if that is known."""

    @abstractmethod
    def epoch_sample_count(self, order: OrderSpec) -> int:
        """Return the number of positions of an epoch; versions and counts must be known."""

    @abstractmethod
    def token_start(self, order: OrderSpec) -> tuple[str, Stages]:
        """Return its part of a token: the fingerprint, and its stages."""

    @abstractmethod
    def at(self, token: Token, saved: Mapping[str, object]) -> Subject:
        """Return the subject in the versions that a run continues with.

        Args:
            token: Where the run continues.
            saved: What the run's state says in words; see `make_state`.

        Raises:
            TokenMalformedError: The state cannot be read.
            TokenSpecChangedError: The token belongs to another subject.
        """

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Return what a state needs besides its token, as values that JSON can hold."""

    def described(self, fetch: Fetch) -> Subject:
        """Return the subject with versions and counts; ask for them if they are unknown.

        Raises:
            HeadraceError: No server answers, or it has no such dataset.
        """
        if self.sample_counts:
            return self
        found = fetch(self.requests())
        stored = tuple(map(_skippable, found))
        for choice, dataset, count in zip(self._skips(), found, stored, strict=True):
            if choice is not None and choice.sample_ids:
                check_within(Skips(choice.sample_ids), count, dataset=dataset.name)
        counts = tuple(kept_in(dataset).sample_count for dataset in found)
        return replace(self._in_versions(found), sample_counts=counts, stored_counts=stored)

    @abstractmethod
    def _skips(self) -> list[SkipChoice | None]:
        """Return the samples to leave out of each dataset."""

    @abstractmethod
    def _in_versions(self, found: Sequence[pb.Dataset]) -> Self:
        """Return the subject in the versions that a server has, with the digest of its filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDataset(Subject):
    """Samples of one dataset.

    Attributes:
        fingerprint: Its version; empty if unknown.
        skips: Its samples that are left out; None for the token's.
        token_skips: Its samples that were left out when the token was made, if known.
        allow_new_skips: Whether a token may have a shorter list of skips.
        where: Which of its samples are read; None for all.
    """

    fingerprint: str = ""
    skips: SkipChoice | None = None
    token_skips: SkipChoice | None = None
    allow_new_skips: bool = False
    where: Where | None = None

    @property
    def stages(self) -> tuple[OrderStage, ...]:
        where: tuple[OrderStage, ...] = (self.where,) if self.where else ()
        if self.skips is None:
            return where
        return (*where, Skip(self.skips, self.allow_new_skips, self.token_skips))

    def requests(self) -> list[pb.GetDatasetRequest]:
        return [dataset_request(self.name, self.fingerprint, self._expression)]

    def epoch_sample_count(self, order: OrderSpec) -> int:
        del order
        return self.sample_counts[0]

    def token_start(self, order: OrderSpec) -> tuple[str, Stages]:
        del order
        skips = "" if self.skips is None else self.skips.digest
        return self.fingerprint, stages_of(filter=self.kept, skips=skips)

    def at(self, token: Token, saved: Mapping[str, object]) -> OneDataset:
        if token.stage("mixture"):
            raise TokenSpecChangedError(
                f"the state belongs to a mixture, but the single dataset {self.name!r} is "
                "requested: make the dataset with the mixture of its run"
            )
        skips = _skips_in(saved)
        return replace(
            self,
            fingerprint=token.fingerprint,
            sample_counts=(),
            skips=skips if self.skips is None else self.skips,
            token_skips=skips,
            where=self.where or _where_in(saved),
        )

    def to_json(self) -> dict[str, object]:
        skips = {} if self.skips is None else {"skips": self.skips.to_json()}
        return {**skips, **({"where": self._expression} if self.where else {})}

    @property
    def _expression(self) -> str:
        return self.where.expression if self.where else ""

    def _skips(self) -> list[SkipChoice | None]:
        return [self.skips]

    def _in_versions(self, found: Sequence[pb.Dataset]) -> Self:
        (dataset,) = found
        return replace(self, fingerprint=dataset.fingerprint, kept=kept_in(dataset).digest)


def one_dataset(selection: Selection, name: str) -> OneDataset:
    """Return a selection of samples under the name that the server knows."""
    return OneDataset(
        name=name,
        skips=skip_choice(selection.skips),
        allow_new_skips=selection.allow_new_skips,
        where=_where(where_of(selection.where)),
    )


def _skippable(dataset: pb.Dataset) -> int:
    """Return how many samples have ids that skips refer to."""
    return dataset.document_count or dataset.sample_count


def _skips_in(saved: Mapping[str, object]) -> SkipChoice | None:
    found: object = saved.get("skips")
    try:
        return skip_choice(found)  # type: ignore[arg-type] # it is checked there
    except (BadArgumentError, TypeError, ValueError) as error:
        raise TokenMalformedError(f"the skips in the state cannot be read: {error}") from error


def _where(expression: str) -> Where | None:
    return Where(expression) if expression else None


def _where_in(saved: Mapping[str, object]) -> Where | None:
    found = saved.get("where")
    if found is None or isinstance(found, str):
        return _where(found or "")
    raise TokenMalformedError(f"the filter in the state cannot be read: {shown(found)}")
