"""Make the order of a run, checked against the digests of its token.

Filters, skipped samples and mixtures that differ from the token's are refused, so that samples of
another run are never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import (
    AnyOrder,
    MixtureSpec,
    ShardTable,
    Skips,
    Subset,
    Token,
    check_within,
    join_skips,
    joined_digest,
    mixture_order_of,
    order_of,
    table_of,
)
from headrace.storage import OpenDataset

_Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One dataset of a run.

    Attributes:
        name: Its name on this page.
        dataset: The dataset, in the version of the run.
        kept: The samples that a filter keeps; None for all.
        skips: The samples to skip.
    """

    name: str
    dataset: OpenDataset
    kept: Subset | None = None
    skips: Skips | None = None

    @property
    def table(self) -> ShardTable:
        """Return its shard table for the order."""
        table = table_of(self.dataset.stretches())
        return table if self.kept is None else self.kept.table(table)


@dataclass(frozen=True, slots=True, eq=False)
class RunOrder:
    """The datasets of a run and their order.

    Attributes:
        members: The datasets.
        order: The order of their samples, whose ids are joined end to end.
    """

    members: tuple[Member, ...]
    order: AnyOrder

    @property
    def first_ids(self) -> _Ids:
        """Return the first id of each dataset, and the end of the last: ``(members + 1,)``."""
        return first_ids_of(self.members)

    def split(self, ids: _Ids) -> tuple[_Ids, _Ids]:
        """Return the index of each sample's dataset, and its id there."""
        firsts = self.first_ids
        owners = np.searchsorted(firsts, ids, side="right") - 1
        return owners, ids - firsts[owners]


def first_ids_of(members: Sequence[Member]) -> _Ids:
    """Return the first joined id of each dataset, and the end of the last."""
    counts = [member.dataset.sample_count for member in members]
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def check_members(token: Token, members: Sequence[Member], mixture: MixtureSpec | None) -> None:
    """Refuse datasets and options that differ from a token.

    Args:
        token: The token of the run.
        members: Its datasets.
        mixture: The mixture, or None for one dataset.

    Raises:
        BadArgumentError: A dataset lacks skipped ids.
        TokenSpecChangedError: A filter, the skipped samples or the mixture differ.
    """
    if not any(member.dataset.sample_count for member in members):
        raise BadArgumentError("the dataset has no samples, so it has no order", field="dataset")
    for member in members:
        check_within(member.skips, member.dataset.sample_count, dataset=member.name)
    if mixture is not None:
        _check("mixture", mixture.digest, token.stage("mixture"), "this mixture")
        _check("versions", mixture.fingerprint, token.fingerprint, "these versions of its datasets")
    kepts = ["" if member.kept is None else member.kept.digest for member in members]
    counts = ", ".join(
        f"{member.kept.count:,} of {member.kept.sample_count:,} samples of {member.name}"
        for member in members
        if member.kept is not None
    )
    found = joined_digest(kepts) if mixture is not None else kepts[0]
    _check("filter", found, token.stage("filter"), f"the filter, which keeps {counts},")
    joined = join_skips([member.skips for member in members], first_ids_of(members))
    digest, count = ("", 0) if joined is None else (joined.digest, len(joined))
    _check(
        "list of skipped samples",
        digest,
        token.stage("skips"),
        f"the list of {count:,} skipped samples",
    )


def order_of_run(token: Token, members: Sequence[Member], mixture: MixtureSpec | None) -> AnyOrder:
    """Return the order of a run that passed `check_members`.

    Raises:
        BadArgumentError: There is no such order.
    """
    kept = [member.kept for member in members]
    skips = [member.skips for member in members]
    tables = [member.table for member in members]
    if mixture is not None:
        return mixture_order_of(mixture, tables, kept, skips=skips)
    return order_of(token.spec, tables[0], kept[0], skips=skips[0])


def _check(what: str, given: str, wanted: str, title: str) -> None:
    if given == wanted:
        return
    if not given:
        found = f"the token has a {what} with the digest {wanted}, but none was given"
    elif not wanted:
        found = f"{title} has the digest {given}, but the token has no {what}"
    else:
        found = f"{title} has the digest {given}, but the token has {wanted}: it is not the run's"
    raise TokenSpecChangedError(
        f"{found}; give what the run was started with, or paste its state, which contains it",
        field=what,
    )
