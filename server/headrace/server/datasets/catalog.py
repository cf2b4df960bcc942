"""The datasets of a server, by name and page by page."""

from __future__ import annotations

import base64
import binascii
import bisect
from collections.abc import Mapping
from types import MappingProxyType

from headrace.errors import BadArgumentError, DatasetNotFoundError
from headrace.server.access.callers import ANYBODY, Caller
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.v1 import shard_service_pb2 as pb

_DEFAULT_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000


class Catalog:
    """All datasets of a server, by name; safe for several threads."""

    def __init__(self, datasets: Mapping[str, ServedDataset] = MappingProxyType({})) -> None:
        # Replaced as a whole and never changed, so that readers need no lock.
        self._datasets = dict(datasets)

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
        """Serve a name no more; return the dataset that had it."""
        rest = dict(self._datasets)
        taken = rest.pop(name)
        self._datasets = rest
        return taken

    def get(self, name: str, caller: Caller = ANYBODY) -> ServedDataset:
        """Return the dataset of a name, if the caller may know of it.

        Raises:
            BadArgumentError: The name is empty.
            DatasetNotFoundError: There is none of that name.
        """
        if not name:
            raise BadArgumentError("no dataset is named; name one", field="dataset")
        served = self._datasets.get(name) if caller.may_read(name) else None
        if served is None:
            raise DatasetNotFoundError(
                f"there is no dataset {name!r} here; list the datasets to see which there are",
                dataset=name,
            )
        return served

    def page(self, *, size: int, token: str, caller: Caller = ANYBODY) -> pb.ListDatasetsResponse:
        """Return one page of the list.

        Args:
            size: Greatest number of datasets, in [0, 1000]; 0 means 100.
            token: Of the page before; empty for the first.
            caller: Sees what it may read and nothing else.

        Raises:
            BadArgumentError: Size or token is none.
        """
        if not 0 <= size <= _MAX_PAGE_SIZE:
            raise BadArgumentError(
                f"page_size is {size}; it must be in [0, {_MAX_PAGE_SIZE}]", field="page_size"
            )
        datasets = self._datasets
        known = [name for name in sorted(datasets) if caller.may_read(name)]
        begin = bisect.bisect_right(known, _decode_page_token(token)) if token else 0
        names = known[begin : begin + (size or _DEFAULT_PAGE_SIZE)]
        is_last = begin + len(names) == len(known)
        return pb.ListDatasetsResponse(
            datasets=[datasets[name].to_proto() for name in names],
            next_page_token="" if is_last else _encode_page_token(names[-1]),
        )

    def close(self) -> None:
        """Give up the connections to the stores."""
        for served in self._datasets.values():
            for older in served.versions.older if served.versions else ():
                older.dataset.close()
            served.dataset.close()


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
            "page_token is none that this server gave out; begin with an empty one",
            field="page_token",
        )
    return name
