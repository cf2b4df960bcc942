"""Mixtures: samples of several datasets in one order, or by id.

The stage is a `Mixture` in requests, and `mixture` in tokens. Each dataset of it may have skips,
and stages that choose from its samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.caches import LruCache
from headrace.errors import BadArgumentError, TokenDatasetChangedError
from headrace.order import (
    MixtureSpec,
    Skips,
    Token,
    check_within,
    combined_fingerprint,
    join_skips,
)
from headrace.server.datasets.catalog import Catalog
from headrace.server.datasets.member import Member
from headrace.server.datasets.served import Mixed, Served
from headrace.server.order_stages.mixtures.mixture_request import (
    MIXTURE_LIMITS,
    check_mixture,
    mixture_spec,
)
from headrace.server.order_stages.mixtures.served_mixture import ServedMixture
from headrace.server.plan.skip_lists import (
    Lists,
    check_adoption,
    digest_of,
    found_list,
)
from headrace.server.plan.stream_request import ReadRequest, Words, wanted_order
from headrace.server.stream.order_plugs import Finding, OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics
from headrace.v1.mixtures_pb2 import Mixture, MixtureDataset
from headrace.v1.shard_service_pb2 import SkipList
from headrace.v1.skips_pb2 import Skip

# Each order takes up to about 100 MiB.
_MAX_MIXTURES = 16
# A run usually started one or two appends ago; trying more is worth a few milliseconds.
_MAX_TRIES = 4096
_MAX_HASHED = 1 << 18
_SKIP = Skip.DESCRIPTOR.full_name


class Plug(OrderPlug):
    """Mixes datasets, if a request asks for it."""

    name = "mixture"
    options = Mixture
    limits = MIXTURE_LIMITS
    words = Words(
        "the mixture",
        "one dataset",
        "request the token's datasets with the amounts, batching and schedule of its run",
        "mixture",
    )

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._mixtures: LruCache[Hashable, Mixed] = LruCache(_MAX_MIXTURES)

    def opened(self, request: ReadRequest, finding: Finding) -> Served | None:
        """Return the mixture that a request reads, or the datasets that it reads by id.

        Raises:
            BadArgumentError: It is not possible.
            TokenDatasetChangedError: The token is for other datasets.
        """
        mixture = request.options(Mixture)
        if mixture is None:
            return None
        for field, value in (("dataset", request.dataset), ("fingerprint", request.fingerprint)):
            if value:
                raise BadArgumentError(
                    f"the request has {field} and a mixture; it must have only one of them",
                    field=field,
                )
        check_mixture(mixture)
        if request.batches is None:
            return _joined(mixture, finding.catalog)
        return _mixture(mixture, request, finding, self._mixtures)


def _joined(mixture: Mixture, catalog: Catalog) -> ServedMixture:
    members = [
        catalog.get(dataset.name).version(dataset.fingerprint) for dataset in mixture.datasets
    ]
    return ServedMixture(members, None)


def _mixture(
    mixture: Mixture, request: ReadRequest, finding: Finding, mixtures: LruCache[Hashable, Mixed]
) -> Served:
    wanted, token = wanted_order(request), request.token
    members: list[Member] = [
        finding.catalog.served(dataset.name).version(dataset.fingerprint)
        for dataset in mixture.datasets
    ]
    if token is not None:
        members = _members_of(token.fingerprint, mixture, members)
    fingerprints = [member.readable.fingerprint for member in members]
    spec = mixture_spec(mixture, wanted.order, fingerprints)
    if token is not None and token.fingerprint != spec.fingerprint:
        raise TokenDatasetChangedError(
            f"the token is for datasets with the combined fingerprint {token.fingerprint}, "
            f"but those requested have {spec.fingerprint}; name the version of each dataset that "
            "the run started with, or start over",
            token_fingerprint=token.fingerprint,
            dataset_fingerprint=spec.fingerprint,
        )
    asked = [finding.options(dataset.stages).get(Skip, Skip()) for dataset in mixture.datasets]
    members = [
        _narrowed(member, dataset, finding)
        for member, dataset in zip(members, mixture.datasets, strict=True)
    ]
    firsts = np.cumsum([0, *(member.dataset.sample_count for member in members)])
    lists = [member.skip_lists for member in members]
    skips = _skips(asked, token, lists, firsts)
    for member, each in zip(members, skips, strict=True):
        check_within(each, member.dataset.sample_count, dataset=member.name)
    # A dataset that was reloaded is another object.
    key = (spec.fingerprint, spec.digest, spec.order, *map(digest_of, skips), *members)
    mixed = mixtures.get_once(key, lambda: _made(spec, members, skips))
    mixed.check_global_batch_size(wanted.global_batch_size)
    return mixed


def _narrowed(member: Member, dataset: MixtureDataset, finding: Finding) -> Member:
    narrowing = [stage for stage in dataset.stages if stage.TypeName() != _SKIP]
    return finding.narrow(member, narrowing) if narrowing else member


def _skips(
    asked: Sequence[Skip],
    token: Token | None,
    lists: Sequence[Lists],
    first_ids: NDArray[np.int64],
) -> tuple[Skips | None, ...]:
    """Return the samples to skip in each dataset."""
    wanted = _found([skip.list for skip in asked], lists, field="skips")
    joined = join_skips(wanted, first_ids)
    if token is not None and digest_of(joined) != token.stage("skips"):
        known = _found([skip.token_list for skip in asked], lists, field="token_skips")
        changed = [digest_of(one) != digest_of(it) for one, it in zip(wanted, known, strict=True)]
        may_change = all(skip.allow_new_list for skip in itertools.compress(asked, changed))
        found = join_skips(known, first_ids)
        check_adoption(joined, found, token, allow_new_skips=may_change)
    return wanted


def _found(
    messages: Sequence[SkipList], lists: Sequence[Lists], *, field: str
) -> tuple[Skips | None, ...]:
    return tuple(
        found_list(message, stored, field=f"mixture.datasets.{field}")
        for message, stored in zip(messages, lists, strict=True)
    )


def _made(spec: MixtureSpec, members: Sequence[Member], skips: Sequence[Skips | None]) -> Mixed:
    # Members that are not samples have mixtures of their own.
    first = next((member for member in members if member.has_pieces), members[0])
    mixed = first.mixed(members, spec, skips)
    return ServedMixture(members, spec, skips) if mixed is None else mixed


def _members_of(combined: str, mixture: Mixture, members: list[Member]) -> list[Member]:
    """Return the versions with a given combined fingerprint, or else the given ones.

    A token contains only this about the versions of a mixture.
    """
    if combined_fingerprint([member.readable.fingerprint for member in members]) == combined:
        return members
    choices = [
        (member.readable.fingerprint,) if dataset.fingerprint else member.candidates()
        for dataset, member in zip(mixture.datasets, members, strict=True)
    ]
    # Each try hashes all fingerprints.
    tries = min(_MAX_TRIES, _MAX_HASHED // len(members))
    for fingerprints in itertools.islice(itertools.product(*choices), tries):
        if combined_fingerprint(fingerprints) == combined:
            return [
                member.version(fingerprint)
                for member, fingerprint in zip(members, fingerprints, strict=True)
            ]
    return members
