"""What a dataset object reads: one dataset of a server, or a mixture of several."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.arguments import shown, split_source, with_source
from headrace.client.options.arguments import where_of
from headrace.client.options.mixture import Mixture, Source, mixture_from, source_of
from headrace.client.options.selection import Selection
from headrace.client.options.skips import SkipChoice, skip_choice
from headrace.client.servers.private_server import name_of_source
from headrace.client.wire.bounds import check_filters
from headrace.errors import BadArgumentError, TokenMalformedError, TokenSpecChangedError
from headrace.order import (
    OrderSpec,
    Skips,
    Token,
    check_within,
    epoch_positions,
    joined_digest,
    mixture_differences,
)
from headrace.v1 import shard_service_pb2 as pb

Fetch = Callable[[Sequence[pb.GetDatasetRequest]], list[pb.Dataset]]
"""Asks a server for datasets."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is read, and in which version, if that is known.

    Attributes:
        name: The dataset's name on the server; empty for a mixture.
        mixture: The mixture, if it is one.
        fingerprint: The version of one dataset; empty if unknown.
        sample_counts: Number of kept samples of each dataset; empty if unknown.
        stored_counts: Number of all samples of each dataset; for packed rows, of documents.
        kept: Digest of the samples that the filters keep; empty without one.
        allow_new_skips: Whether a token may have a shorter list of skips.
        skips: Samples of one dataset that are left out; None for the token's.
        token_skips: Samples that were left out when the token was made, if known.
        where: Which samples of one dataset are read; empty for all.
    """

    name: str
    mixture: Mixture | None = None
    fingerprint: str = ""
    sample_counts: tuple[int, ...] = ()
    skips: SkipChoice | None = None
    token_skips: SkipChoice | None = None
    where: str = ""
    stored_counts: tuple[int, ...] = ()
    kept: str = ""
    allow_new_skips: bool = False

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.name if self.mixture is None else self.mixture.title

    def described(self, fetch: Fetch) -> Subject:
        """Return the subject with versions and counts; ask for them if they are unknown.

        Raises:
            HeadraceError: No server answers, or it has no such dataset.
        """
        if self.sample_counts:
            return self
        found = fetch(self.requests())
        check_filters([request.where for request in self.requests()], found)
        stored = tuple(map(_skippable, found))
        counts = tuple(
            dataset.filter.sample_count if dataset.HasField("filter") else dataset.sample_count
            for dataset in found
        )
        known = replace(self, sample_counts=counts, stored_counts=stored, kept=self._kept(found))
        prints = [dataset.fingerprint for dataset in found]
        self._check_skips(found)
        if self.mixture is None:
            return replace(known, fingerprint=prints[0])
        return replace(known, mixture=self.mixture.pinned(prints))

    def requests(self) -> list[pb.GetDatasetRequest]:
        """Return a request for each dataset, with its version if that is known."""
        if self.mixture is None:
            wanted = [(self.name, self.fingerprint, self.where)]
        else:
            wanted = [
                (entry.name, entry.fingerprint, where_of(entry.where))
                for entry in self.mixture.datasets
            ]
        return [
            pb.GetDatasetRequest(name=name, fingerprint=fingerprint, where=where)
            for name, fingerprint, where in wanted
        ]

    def _kept(self, found: Sequence[pb.Dataset]) -> str:
        digests = [dataset.filter.digest for dataset in found]
        return digests[0] if self.mixture is None else joined_digest(digests)

    def _check_skips(self, found: Sequence[pb.Dataset]) -> None:
        given = (
            [self.skips]
            if self.mixture is None
            else [skip_choice(entry.skips) for entry in self.mixture.datasets]
        )
        for choice, dataset in zip(given, found, strict=True):
            if choice is not None and choice.sample_ids:
                skips = Skips(choice.sample_ids)
                check_within(skips, _skippable(dataset), dataset=dataset.name)

    def epoch_sample_count(self, order: OrderSpec) -> int:
        """Return the number of positions of an epoch; versions and counts must be known."""
        if self.mixture is None:
            return self.sample_counts[0]
        return epoch_positions(self.mixture.spec(order), self.sample_counts)

    def token_start(self, order: OrderSpec) -> tuple[str, str, str]:
        """Return its part of a token: fingerprint, digest of the mixture, digest of the skips."""
        if self.mixture is None:
            return self.fingerprint, "", "" if self.skips is None else self.skips.digest
        spec = self.mixture.spec(order)
        firsts = [0, *itertools.accumulate(self.stored_counts)]
        return spec.fingerprint, spec.digest, self.mixture.skips_digest(firsts)

    def at(
        self,
        token: Token,
        found: Mixture | None = None,
        skips: SkipChoice | None = None,
        where: str = "",
    ) -> Subject:
        """Return the subject in the versions that a run continues with.

        Args:
            token: Where the run continues.
            found: The mixture of the state, if there is one.
            skips: The skips of the state.
            where: The filter of the state.

        Raises:
            TokenSpecChangedError: The token belongs to another mixture, or to none.
        """
        if self.mixture is None:
            if token.stage("mixture"):
                raise TokenSpecChangedError(
                    f"the state belongs to a mixture, but the single dataset {self.name!r} is "
                    "requested: make the dataset with the mixture of its run"
                )
            return replace(
                self,
                fingerprint=token.fingerprint,
                sample_counts=(),
                skips=skips if self.skips is None else self.skips,
                token_skips=skips,
                where=self.where or where,
            )
        mixture = self.mixture if found is None else _continued(self.mixture, found)
        spec = mixture.spec(token.spec)
        if spec.digest != token.stage("mixture"):
            differences = () if found is None else mixture_differences(spec, found.spec(token.spec))
            raise TokenSpecChangedError(
                "the state belongs to another mixture"
                + (": " + "; ".join(differences) if differences else "")
                + ". Make the dataset with the mixture of its run, or start a new run without it"
            )
        return Subject("", mixture, allow_new_skips=self.allow_new_skips)


def split_rows(dataset: str) -> tuple[str, str]:
    """Return the name or URL of a dataset, and ``:LENGTH`` if its packed rows are meant, or ''."""
    index, source = split_source(dataset)
    found = _ROWS.fullmatch(index)
    return (dataset, "") if found is None else (with_source(found["source"], source), found["rows"])


# Names hold no colon, and a dataset's URL ends in a folder, not in a port.
_ROWS = re.compile(r"(?P<source>.*[^:])(?P<rows>:[0-9]{1,7})", re.DOTALL)


def subject_of(
    dataset: Source, *, is_private: bool, url: str | Mapping[str, str] | None = None
) -> tuple[Subject, dict[str, str | None]]:
    """Return what is read, and the URL of each name, if known.

    Args:
        dataset: Name, selection, mixture, or pairs of name and proportion; with URLs as names if
            private.
        is_private: Whether a private server reads it.
        url: Its URL, if names are not URLs; for a mixture, URLs by name.

    Raises:
        BadArgumentError: It is an impossible mixture.
    """
    found = source_of(dataset)
    if isinstance(found, Selection):
        source, rows = split_rows(found.name)
        name = name_of_source(source) if is_private else source
        known = url if url is None or isinstance(url, str) else url.get(name)
        subject = Subject(
            name + rows,
            skips=skip_choice(found.skips),
            where=where_of(found.where),
            allow_new_skips=found.allow_new_skips,
        )
        return subject, {name: source if is_private else known}
    mixture = found
    subject = Subject("", mixture, allow_new_skips=mixture.allow_new_skips)
    if not is_private:
        places = url if isinstance(url, Mapping) else {}
        return subject, {
            name: places.get(name)
            for name in (split_rows(entry.name)[0] for entry in mixture.datasets)
        }
    sources = [split_rows(entry.name) for entry in mixture.datasets]
    urls: dict[str, str | None] = {name_of_source(source): source for source, _ in sources}
    if len(urls) < len(mixture.datasets):
        raise BadArgumentError(
            "two URLs of the mixture end in the same name, and a private server names its datasets "
            "so; expected folders with different names",
            field="dataset",
        )
    entries = (
        replace(entry, name=name_of_source(source) + rows)
        for entry, (source, rows) in zip(mixture.datasets, sources, strict=True)
    )
    return replace(subject, mixture=replace(mixture, datasets=tuple(entries))), urls


def _skippable(dataset: pb.Dataset) -> int:
    """Return how many samples have ids that skips refer to."""
    return dataset.document_count or dataset.sample_count


def skips_in(state: Mapping[str, object]) -> SkipChoice | None:
    """Return the skips of one dataset in a state; None if it contains none.

    Raises:
        TokenMalformedError: The value is not a list of skips.
    """
    spec = state.get("spec")
    found = spec.get("skips") if isinstance(spec, Mapping) else None
    try:
        return skip_choice(found)
    except (BadArgumentError, TypeError, ValueError) as error:
        raise TokenMalformedError(f"the skips in the state cannot be read: {error}") from error


def where_in(state: Mapping[str, object]) -> str:
    """Return the filter of one dataset in a state; empty if it contains none.

    Raises:
        TokenMalformedError: The value is not a filter.
    """
    spec = state.get("spec")
    found = spec.get("where") if isinstance(spec, Mapping) else None
    if found is None or isinstance(found, str):
        return found or ""
    raise TokenMalformedError(f"the filter in the state cannot be read: {shown(found)}")


def mixture_in(state: Mapping[str, object]) -> Mixture | None:
    """Return the mixture in a state; None if the state is of one dataset.

    Raises:
        TokenMalformedError: The value is not a mixture.
    """
    spec = state.get("spec")
    fields = spec.get("mixture") if isinstance(spec, Mapping) else None
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
