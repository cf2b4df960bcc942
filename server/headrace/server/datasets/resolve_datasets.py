"""Find what a request reads: the datasets it names, in the versions that it goes on with."""

from __future__ import annotations

import itertools

import numpy as np

from headrace.errors import BadArgumentError, TokenDatasetChangedError
from headrace.order import check_within, combined_fingerprint, decode_token
from headrace.server.access.callers import ANYBODY, Caller
from headrace.server.datasets.catalog import Catalog
from headrace.server.datasets.served import Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.datasets.served_mixture import Mixtures, ServedMixture
from headrace.server.plan.mixture_request import MAX_DATASETS, check_mixture, mixture_spec
from headrace.server.plan.order_request import BatchesRequest, wanted_order
from headrace.server.plan.skip_lists import mixture_skips
from headrace.v1 import shard_service_pb2 as pb

# A run mostly began one or two appends ago; more is worth some milliseconds, and no more.
_MAX_TRIES = 4096
_MAX_HASHED = 1 << 18

Request = BatchesRequest | pb.GetSamplesRequest


def find(
    request: Request, catalog: Catalog, mixtures: Mixtures, *, caller: Caller = ANYBODY
) -> Served:
    """Return what a request reads.

    A version that the request names, or its token, is opened if the store still has it: so a run
    keeps its order after an append.

    Raises:
        BadArgumentError: No dataset is named, or a field is outside its range.
        DatasetNotFoundError: The caller may read no dataset of that name.
        TokenMalformedError: The token is none.
        TokenDatasetChangedError: The store has no such version, or no longer.
        TokenSpecChangedError: The token is of another order than the one wanted.
    """
    if isinstance(request, pb.GetSamplesRequest):
        if request.datasets:
            _refuse_both(request, other="datasets")
            return _joined(request, catalog, caller)
        return catalog.get(request.dataset, caller).version(request.fingerprint)
    if request.HasField("mixture"):
        _refuse_both(request, other="mixture")
        return _mixture(request, catalog, mixtures, caller)
    return catalog.get(request.dataset, caller).version(_fingerprint(request))


def names_of(request: Request) -> frozenset[str]:
    """Return the names of the datasets that a request reads."""
    several = (
        request.datasets if isinstance(request, pb.GetSamplesRequest) else request.mixture.datasets
    )
    return frozenset([dataset.name for dataset in several] or [request.dataset])


def _refuse_both(request: Request, *, other: str) -> None:
    given = {field.name for field, _ in request.ListFields()}
    for field in ("dataset", "fingerprint", "skips", "token_skips"):
        if field in given:
            raise BadArgumentError(
                f"the request has {field} and {other}; it must have one of them", field=field
            )


def _joined(request: pb.GetSamplesRequest, catalog: Catalog, caller: Caller) -> ServedMixture:
    if len(request.datasets) > MAX_DATASETS:
        raise BadArgumentError(
            f"the request has {len(request.datasets)} datasets; {MAX_DATASETS} is the most",
            field="datasets",
        )
    members = [
        catalog.get(dataset.name, caller).version(dataset.fingerprint)
        for dataset in request.datasets
    ]
    return ServedMixture(members, None)


def _mixture(
    request: BatchesRequest, catalog: Catalog, mixtures: Mixtures, caller: Caller
) -> ServedMixture:
    wanted = wanted_order(request)
    check_mixture(request.mixture)
    members = [
        catalog.get(dataset.name, caller).version(dataset.fingerprint)
        for dataset in request.mixture.datasets
    ]
    if wanted.token is not None:
        members = _members_of(wanted.token.fingerprint, request.mixture, members)
    fingerprints = [member.dataset.fingerprint for member in members]
    spec = mixture_spec(request.mixture, wanted.order, fingerprints)
    if wanted.token is not None and wanted.token.fingerprint != spec.fingerprint:
        raise TokenDatasetChangedError(
            f"the token is of datasets with the fingerprint {wanted.token.fingerprint} together, "
            f"and those wanted have {spec.fingerprint}; name the version of each dataset that the "
            "run began with, or start anew",
            token_fingerprint=wanted.token.fingerprint,
            dataset_fingerprint=spec.fingerprint,
        )
    firsts = np.cumsum([0, *(member.dataset.sample_count for member in members)]).tolist()
    lists = [member.skip_lists for member in members]
    skips = mixture_skips(request, wanted.token, lists, firsts)
    for member, each in zip(members, skips, strict=True):
        check_within(each, member.dataset.sample_count, dataset=member.name)
    mixture = mixtures.get(spec, members, skips)
    mixture.check_global_batch_size(wanted.global_batch_size)
    return mixture


def _members_of(
    combined: str, mixture: pb.Mixture, members: list[ServedDataset]
) -> list[ServedDataset]:
    """Return the versions that have a fingerprint together, if there are such; else those given.

    A token holds no more of the versions of a mixture than that.
    """
    if combined_fingerprint([member.dataset.fingerprint for member in members]) == combined:
        return members
    choices = [
        (member.dataset.fingerprint,)
        if dataset.fingerprint or member.versions is None
        else member.versions.candidates()
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


def _fingerprint(request: BatchesRequest) -> str:
    if request.fingerprint or request.WhichOneof("start") != "resume_token":
        return request.fingerprint
    return decode_token(request.resume_token).fingerprint
