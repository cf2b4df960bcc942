"""Mixtures: samples of several datasets in one order, or by id.

The request's field is `mixture`, and so is the name of the stage in tokens. Each dataset of it may
have a filter and skips of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from headrace.errors import BadArgumentError, TokenDatasetChangedError
from headrace.order import MixtureSpec, Skips, check_within, combined_fingerprint
from headrace.server.datasets.catalog import Catalog, Finding, Request
from headrace.server.datasets.member import Member
from headrace.server.datasets.served import Mixed, Served
from headrace.server.order_stages.mixtures.mixture_request import check_mixture, mixture_spec
from headrace.server.order_stages.mixtures.served_mixture import ServedMixture
from headrace.server.plan.list_limits import MAX_DATASETS
from headrace.server.plan.recent import Recent
from headrace.server.plan.skip_lists import digest_of, mixture_skips
from headrace.server.plan.stream_request import BatchesRequest, Words, wanted_order
from headrace.server.stream.order_plugs import OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb

# Each order takes up to about 100 MiB.
_MAX_MIXTURES = 16
# A run usually started one or two appends ago; trying more is worth a few milliseconds.
_MAX_TRIES = 4096
_MAX_HASHED = 1 << 18


class Plug(OrderPlug):
    """Mixes datasets, if a request asks for it."""

    name = "mixture"
    fields = ("mixture", "datasets")
    words = Words(
        "the mixture",
        "one dataset",
        "request the token's datasets with the amounts, batching and schedule of its run",
        "mixture",
    )

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._mixtures: Recent[Mixed] = Recent(_MAX_MIXTURES)

    def opened(self, request: Request, finding: Finding) -> Served | None:
        """Return the mixture that a request reads, or the datasets that it reads by id.

        Raises:
            BadArgumentError: It is not possible.
            TokenDatasetChangedError: The token is for other datasets.
        """
        if isinstance(request, pb.GetSamplesRequest):
            if not request.datasets:
                return None
            _refuse_both(request, other="datasets")
            return _joined(request, finding.catalog)
        if not request.HasField("mixture"):
            return None
        _refuse_both(request, other="mixture")
        return _mixture(request, finding, self._mixtures)


def _refuse_both(request: Request, *, other: str) -> None:
    given = {field.name for field, _ in request.ListFields()}
    for field in ("dataset", "fingerprint", "skips", "token_skips", "where"):
        if field in given:
            raise BadArgumentError(
                f"the request has {field} and {other}; it must have only one of them", field=field
            )


def _joined(request: pb.GetSamplesRequest, catalog: Catalog) -> ServedMixture:
    if len(request.datasets) > MAX_DATASETS:
        raise BadArgumentError(
            f"the request has {len(request.datasets)} datasets; it must have at most "
            f"{MAX_DATASETS}",
            field="datasets",
        )
    members = [
        catalog.get(dataset.name).version(dataset.fingerprint) for dataset in request.datasets
    ]
    return ServedMixture(members, None)


def _mixture(request: BatchesRequest, finding: Finding, mixtures: Recent[Mixed]) -> Served:
    wanted = wanted_order(request)
    check_mixture(request.mixture)
    members: list[Member] = [
        finding.catalog.served(dataset.name).version(dataset.fingerprint)
        for dataset in request.mixture.datasets
    ]
    if wanted.token is not None:
        members = _members_of(wanted.token.fingerprint, request.mixture, members)
    fingerprints = [member.readable.fingerprint for member in members]
    spec = mixture_spec(request.mixture, wanted.order, fingerprints)
    if wanted.token is not None and wanted.token.fingerprint != spec.fingerprint:
        raise TokenDatasetChangedError(
            f"the token is for datasets with the combined fingerprint {wanted.token.fingerprint}, "
            f"but those requested have {spec.fingerprint}; name the version of each dataset that "
            "the run started with, or start over",
            token_fingerprint=wanted.token.fingerprint,
            dataset_fingerprint=spec.fingerprint,
        )
    members = [
        finding.filtering(member, dataset.where) if dataset.where else member
        for member, dataset in zip(members, request.mixture.datasets, strict=True)
    ]
    firsts = np.cumsum([0, *(member.dataset.sample_count for member in members)])
    lists = [member.skip_lists for member in members]
    skips = mixture_skips(request, wanted.token, lists, firsts)
    for member, each in zip(members, skips, strict=True):
        check_within(each, member.dataset.sample_count, dataset=member.name)
    # A dataset that was reloaded is another object.
    key = (spec.fingerprint, spec.digest, spec.order, *map(digest_of, skips), *members)
    mixture = mixtures.get(key, lambda: _made(spec, members, skips))
    mixture.check_global_batch_size(wanted.global_batch_size)
    return mixture


def _made(spec: MixtureSpec, members: Sequence[Member], skips: Sequence[Skips | None]) -> Mixed:
    # Members that are not samples have mixtures of their own.
    first = next((member for member in members if member.has_pieces), members[0])
    mixed = first.mixed(members, spec, skips)
    return (
        ServedMixture([member.base for member in members], spec, skips) if mixed is None else mixed
    )


def _members_of(combined: str, mixture: pb.Mixture, members: list[Member]) -> list[Member]:
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
