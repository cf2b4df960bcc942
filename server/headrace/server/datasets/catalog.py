"""Find the datasets of a server: by name, page by page, and those that a request reads."""

from __future__ import annotations

import base64
import binascii
import bisect
import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from headrace.errors import BadArgumentError, DatasetNotFoundError, TokenDatasetChangedError
from headrace.order import check_within, combined_fingerprint, decode_token
from headrace.server.access.callers import Caller
from headrace.server.datasets.open_mixtures import Mixtures
from headrace.server.datasets.served import Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.datasets.served_mixture import ServedMixture
from headrace.server.datasets.served_row_mixture import ServedRowMixture, only_rows
from headrace.server.datasets.served_rows import ServedRows, refuse_by_id, split_name
from headrace.server.plan.mixture_request import MAX_DATASETS, check_mixture, mixture_spec
from headrace.server.plan.skip_lists import mixture_skips
from headrace.server.plan.stream_request import BatchesRequest, wanted_order
from headrace.v1 import shard_service_pb2 as pb

_DEFAULT_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000


class Catalog:
    """All datasets of a server, or those that a caller may read, by name; thread-safe."""

    def __init__(self, datasets: Mapping[str, ServedDataset] = MappingProxyType({})) -> None:
        # Replaced as a whole and never changed, so that readers need no lock.
        self._datasets = datasets

    def seen_by(self, caller: Caller) -> Catalog:
        """Return the datasets that a caller may read now."""
        datasets, names = self._datasets, caller.datasets
        if names is None:
            return self
        return Catalog({name: datasets[name] for name in sorted(datasets.keys() & names)})

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._datasets))

    def put(self, served: ServedDataset) -> ServedDataset | None:
        """Serve a dataset under its name; return the one that had the name before."""
        before = self._datasets.get(served.name)
        self._datasets = {**self._datasets, served.name: served}
        return before

    def take(self, name: str) -> ServedDataset:
        """Stop serving a name; return the dataset that had it."""
        rest = dict(self._datasets)
        taken = rest.pop(name)
        self._datasets = rest
        return taken

    def get(self, name: str) -> ServedDataset:
        """Return the dataset of a name.

        Raises:
            BadArgumentError: The name is empty.
            DatasetNotFoundError: There is no dataset of that name.
        """
        if not name:
            raise BadArgumentError("the request names no dataset; name one", field="dataset")
        served = self._datasets.get(name)
        if served is None:
            near = _similar_names(name, self._datasets)
            raise DatasetNotFoundError(
                f"there is no dataset {name[:_LONGEST_COMPARED]!r} here{near}; `headrace list "
                "HOST:PORT` shows those that you may read",
                dataset=name,
            )
        return served

    def served(self, name: str) -> ServedDataset | ServedRows:
        """Return the dataset of a name, or the rows of one that ``NAME:LENGTH`` names.

        Raises:
            BadArgumentError: The name is empty.
            DatasetNotFoundError: There is no dataset of that name.
        """
        parts = None if name in self._datasets else split_name(name)
        if parts is None or parts[0] not in self._datasets:
            return self.get(name)
        base, length = parts
        return self.get(base).rows.get(length)

    def owner_of(self, name: str) -> str:
        """Return the dataset that a name stands for: its own, or the one whose rows it names."""
        parts = None if name in self._datasets else split_name(name)
        return name if parts is None else parts[0]

    def page(self, *, size: int, token: str) -> pb.ListDatasetsResponse:
        """Return one page of the list.

        Args:
            size: The most datasets to return, in [0, 1000]; 0 means 100.
            token: The token of the previous page; empty for the first.

        Raises:
            BadArgumentError: The size or the token is invalid.
        """
        if not 0 <= size <= _MAX_PAGE_SIZE:
            raise BadArgumentError(
                f"page_size is {size}; it must be in [0, {_MAX_PAGE_SIZE}]", field="page_size"
            )
        datasets = self._datasets
        known = sorted(datasets)
        start = bisect.bisect_right(known, _decode_page_token(token)) if token else 0
        names = known[start : start + (size or _DEFAULT_PAGE_SIZE)]
        is_last = start + len(names) == len(known)
        return pb.ListDatasetsResponse(
            datasets=[datasets[name].to_proto() for name in names],
            next_page_token="" if is_last else _encode_page_token(names[-1]),
        )

    def close(self) -> None:
        """Close the connections to the stores."""
        for served in self._datasets.values():
            for one in (served, *(served.versions.close() if served.versions else ())):
                one.rows.close()
                one.dataset.close()


# The token is the last name of its page, so that pages stay right when datasets come and go.
def _encode_page_token(name: str) -> str:
    return base64.urlsafe_b64encode(b"after:" + name.encode()).decode()


def _decode_page_token(token: str) -> str:
    try:
        prefix, _, name = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
    except (binascii.Error, ValueError):
        prefix, name = "", ""
    if prefix != "after" or _encode_page_token(name) != token:
        raise BadArgumentError(
            "page_token was not made by this server; start with an empty one",
            field="page_token",
        )
    return name


# A run usually started one or two appends ago; trying more is worth a few milliseconds.
_MAX_TRIES = 4096
_MAX_HASHED = 1 << 18

Request = BatchesRequest | pb.GetSamplesRequest


Member = ServedDataset | ServedRows
"""What a mixture may have, all of one kind."""

Filtering = Callable[[ServedDataset | ServedRows, str], ServedDataset]
"""Returns the part of a dataset that an expression keeps."""


def find(request: Request, catalog: Catalog, mixtures: Mixtures, filtering: Filtering) -> Served:
    """Return the dataset or mixture that a request reads.

    A version that the request names, or its token, is opened if the store still has it: so a run
    keeps its order after an append.

    Args:
        request: The request.
        catalog: The datasets that the caller may read.
        mixtures: The mixtures that are open.
        filtering: Applies filters of rows.

    Raises:
        BadArgumentError: No dataset is named, or a field is outside its range.
        DatasetNotFoundError: The caller may read no dataset of that name.
        TokenMalformedError: The token is invalid.
        TokenDatasetChangedError: The store does not have that version, or no longer.
        TokenSpecChangedError: The token belongs to another order than the requested one.
        HeadraceError: See `Filters.apply`.
    """
    if isinstance(request, pb.GetSamplesRequest):
        if request.datasets:
            _refuse_both(request, other="datasets")
            return _joined(request, catalog)
        refuse_by_id(catalog.served(request.dataset))
        return catalog.get(request.dataset).version(request.fingerprint)
    if request.HasField("mixture"):
        _refuse_both(request, other="mixture")
        return _mixture(request, catalog, mixtures, filtering)
    served = catalog.served(request.dataset).version(_fingerprint(request))
    return filtering(served, request.where) if request.where else served


def names_of(request: Request) -> frozenset[str]:
    """Return the names of the datasets that a request reads."""
    several = (
        request.datasets if isinstance(request, pb.GetSamplesRequest) else request.mixture.datasets
    )
    return frozenset([dataset.name for dataset in several] or [request.dataset])


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


def _mixture(
    request: BatchesRequest, catalog: Catalog, mixtures: Mixtures, filtering: Filtering
) -> ServedMixture | ServedRowMixture:
    wanted = wanted_order(request)
    check_mixture(request.mixture)
    members: list[Member] = [
        catalog.served(dataset.name).version(dataset.fingerprint)
        for dataset in request.mixture.datasets
    ]
    if wanted.token is not None:
        members = _members_of(wanted.token.fingerprint, request.mixture, members)
    only_rows(members)
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
        filtering(member, dataset.where) if dataset.where else member
        for member, dataset in zip(members, request.mixture.datasets, strict=True)
    ]
    firsts = np.cumsum([0, *(member.dataset.sample_count for member in members)])
    lists = [member.skip_lists for member in members]
    skips = mixture_skips(request, wanted.token, lists, firsts)
    for member, each in zip(members, skips, strict=True):
        check_within(each, member.dataset.sample_count, dataset=member.name)
    mixture = mixtures.get(spec, members, skips)
    mixture.check_global_batch_size(wanted.global_batch_size)
    return mixture


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


def _fingerprint(request: BatchesRequest) -> str:
    if request.fingerprint or request.WhichOneof("start") != "resume_token":
        return request.fingerprint
    return decode_token(request.resume_token).fingerprint


def _similar_names(name: str, known: Iterable[str]) -> str:
    """Return the names that a caller may have meant, among those that it may see."""
    if "/" in name:
        return ", and a URL is not a name: `headrace serve NAME=URL` gives a dataset its name"
    few = list(itertools.islice(known, _MOST_COMPARED))
    near = difflib.get_close_matches(name[:_LONGEST_COMPARED], few)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


_MOST_COMPARED, _LONGEST_COMPARED = 100, 100
"""The most names, and characters of the requested name, to compare; that takes a millisecond."""
