"""Find the datasets of a run among those that the caller may read."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import BadArgumentError, HeadraceError, TokenSpecChangedError
from headrace.order import MixtureSpec, Skips, Token
from headrace.page.data.filter_results import FilterResults
from headrace.page.data.library import Library
from headrace.page.runs.run_options import RunOptions, read_mixture_text, read_skips
from headrace.page.runs.run_order import Member
from headrace.server.access.callers import Caller
from headrace.storage import OpenDataset

if TYPE_CHECKING:
    from headrace.client.options.mixture import MixtureEntry

MAX_MEMBERS: Final = 64
"""The maximum number of datasets of a mixture to open for a view."""


class UnknownRunError(Exception):
    """The order of a run is unknown; the message follows "its next samples are not shown: "."""


@dataclass(frozen=True, slots=True)
class Finder:
    """Find the datasets of runs.

    Args:
        library: The datasets.
        filters: The results of filters.
        caller: The caller.
        stack: Closes the datasets.
    """

    library: Library
    filters: FilterResults
    caller: Caller
    stack: ExitStack

    def members(self, token: Token, options: RunOptions) -> tuple[list[Member], MixtureSpec | None]:
        """Return the datasets of a run, and the mixture if it is one.

        Raises:
            UnknownRunError: A dataset or an option is missing.
            HeadraceError: An option cannot be parsed, or belongs to another run.
        """
        if token.stage("mixture"):
            return self._mixture(token, options)
        if options.mixture:
            raise TokenSpecChangedError(
                "a mixture was given, but the token is for a single dataset; leave the mixture "
                "empty",
                field="mixture",
            )
        name, dataset = self._version(token.fingerprint)
        if token.stage("filter") and not options.where:
            raise UnknownRunError(
                "the run uses a filter, and its token contains only the filter's digest; give the "
                "filter above, or paste the state of the run"
            )
        kept = self.filters.get(dataset, options.where) if options.where else None
        skips = self._skips(name, options.skips or token.stage("skips"))
        return [Member(name, dataset, kept, skips)], None

    def _mixture(self, token: Token, options: RunOptions) -> tuple[list[Member], MixtureSpec]:
        if options.where or options.skips:
            raise TokenSpecChangedError(
                "a filter or skipped samples were given with a mixture; give them in the mixture, "
                "as where and skips of each dataset",
                field="where" if options.where else "skips",
            )
        if not options.mixture:
            raise UnknownRunError(
                "the run reads a mixture, and its token contains only the mixture's digest; give "
                "the mixture above, or paste the state of the run"
            )
        mixture = read_mixture_text(options.mixture)
        if len(mixture.datasets) > MAX_MEMBERS:
            raise BadArgumentError(
                f"the mixture has {len(mixture.datasets)} datasets, but a page opens at most "
                f"{MAX_MEMBERS} for a view; `headrace order` shows its samples",
                field="mixture",
            )
        # Checked before any dataset is opened or filtered.
        if mixture.spec(token.spec).digest != token.stage("mixture"):
            raise TokenSpecChangedError(
                f"this mixture has the digest {mixture.spec(token.spec).digest}, but the token has "
                f"{token.stage('mixture')}: it is not the run's mixture; give the one that the run "
                "was started with, with the same names and weights, or paste the run's state, "
                "which contains it",
                field="mixture",
            )
        members = [self._member(entry) for entry in mixture.datasets]
        pinned = mixture.pinned([member.dataset.fingerprint for member in members])
        return members, pinned.spec(token.spec)

    def _member(self, entry: MixtureEntry) -> Member:
        if entry.fingerprint:
            name, dataset = self._version(entry.fingerprint)
        else:
            name = entry.name
            dataset = self.stack.enter_context(self.library.opened(self.caller, name))
        kept = self.filters.get(dataset, entry.where) if entry.where else None
        if isinstance(entry.skips, str) or entry.skips is None:
            return Member(name, dataset, kept, self._skips(name, entry.skips or ""))
        return Member(name, dataset, kept, Skips(entry.skips) if len(entry.skips) else None)

    def _skips(self, name: str, text: str) -> Skips | None:
        choice = read_skips(text)
        if choice is None or not choice.digest:
            return None
        if choice.sample_ids:
            return Skips(choice.sample_ids)
        found = self.library.stored_skips(self.caller, name, choice.digest)
        if found is None:
            raise UnknownRunError(
                f"the run skips a list of samples with the digest {choice.digest}, which is not "
                "here; give their ids above, or paste the state of the run"
            )
        return found

    def _version(self, fingerprint: str) -> tuple[str, OpenDataset]:
        """Return the dataset with a version, and its name."""
        for name in self.library.names(self.caller):
            try:
                found = self._opened(name, fingerprint)
            except HeadraceError:
                # Another dataset may be intact.
                continue
            if found is not None:
                return name, found
        raise UnknownRunError(f"no dataset that you may read has version {fingerprint}")

    def _opened(self, name: str, fingerprint: str) -> OpenDataset | None:
        opened = self.stack.enter_context(self.library.opened(self.caller, name))
        if opened.fingerprint == fingerprint:
            return opened
        versions = self.library.versions(self.caller, name)
        if not any(one.fingerprint == fingerprint for one in versions):
            return None
        return self.stack.enter_context(self.library.opened(self.caller, name, fingerprint))
