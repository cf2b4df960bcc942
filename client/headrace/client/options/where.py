"""``where=``: an expression that selects the samples to read, which the server evaluates."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.arguments import text
from headrace.errors import CallerError
from headrace.v1 import shard_service_pb2 as pb

_WANTED = "an expression such as \"label < 10 and lang = 'en'\", or None"


def where_of(where: str | None, *, field: str = "where") -> str:
    """Return the expression that an argument means; empty for None.

    Raises:
        BadArgumentError: The argument is not a string, or is empty.
    """
    return "" if where is None else text(field, where, wanted=_WANTED)


def check_filters(wanted: Sequence[str], found: Sequence[pb.Dataset]) -> None:
    """Refuse servers that know no filters, since they would send all samples.

    Args:
        wanted: The expression for each dataset; empty for none.
        found: The server's descriptions of the datasets.

    Raises:
        CallerError: A filter was asked for, and the server does not confirm it.
    """
    for where, dataset in zip(wanted, found, strict=False):
        if where and not dataset.HasField("filter"):
            raise CallerError(
                f"the server ignored the filter requested for {dataset.name!r}: it is older than "
                "where=; update it, or leave where= out"
            )


def wheres_of(request: pb.ReadBatchesRequest | pb.GetBatchRequest) -> tuple[str, ...]:
    """Return the filter of each dataset that a request reads; empty for none."""
    if request.HasField("mixture"):
        return tuple(dataset.where for dataset in request.mixture.datasets)
    return (request.where,)
