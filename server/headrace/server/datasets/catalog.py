"""Find the datasets of a server by name, and page by page."""

from __future__ import annotations

import base64
import binascii
import bisect
import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from headrace.errors import BadArgumentError, DatasetNotFoundError
from headrace.server.access.callers import Caller
from headrace.server.datasets.member import Member
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.v1 import shard_service_pb2 as pb

_DEFAULT_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000


class Catalog:
    """All datasets of a server, or those that a caller may read, by name; thread-safe.

    Attributes:
        derive: Returns what a stage of the order makes of a dataset, for the rest of a name; None
            for nothing.
    """

    def __init__(
        self,
        datasets: Mapping[str, ServedDataset] = MappingProxyType({}),
        derive: Callable[[ServedDataset, str], Member | None] = lambda _, __: None,
    ) -> None:
        self.derive = derive
        # Replaced as a whole and never changed, so that readers need no lock.
        self._datasets = datasets

    def seen_by(self, caller: Caller) -> Catalog:
        """Return the datasets that a caller may read now."""
        datasets, names = self._datasets, caller.datasets
        if names is None:
            return self
        seen = {name: datasets[name] for name in sorted(datasets.keys() & names)}
        return Catalog(seen, self.derive)

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

    def served(self, name: str) -> Member:
        """Return the dataset of a name, or what a stage of the order makes of one (``NAME:MORE``).

        Raises:
            BadArgumentError: The name is empty.
            DatasetNotFoundError: There is no dataset of that name.
        """
        owner = self.owner_of(name)
        made = None if owner == name else self.derive(self.get(owner), name[len(owner) + 1 :])
        return self.get(name) if made is None else made

    def owner_of(self, name: str) -> str:
        """Return the dataset that a name stands for: its own, or the one before a colon."""
        owner = name.rpartition(":")[0]
        return owner if name not in self._datasets and owner in self._datasets else name

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
                one.tables.close()
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


def _similar_names(name: str, known: Iterable[str]) -> str:
    """Return the names that a caller may have meant, among those that it may see."""
    if "/" in name:
        return ", and a URL is not a name: `headrace serve NAME=URL` gives a dataset its name"
    few = list(itertools.islice(known, _MOST_COMPARED))
    near = difflib.get_close_matches(name[:_LONGEST_COMPARED], few)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


_MOST_COMPARED, _LONGEST_COMPARED = 100, 100
"""The most names, and characters of the requested name, to compare; that takes a millisecond."""
