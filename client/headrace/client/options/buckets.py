"""Length buckets: how many batches are sorted by length together."""

from __future__ import annotations

from headrace.arguments import whole
from headrace.errors import BadArgumentError
from headrace.order import LEAST_BUCKETS, MOST_BUCKETS


def buckets_of(buckets: int | None, *, is_mixture: bool = False) -> int:
    """Return the number of buckets that an argument means; 0 for None.

    Args:
        buckets: The argument.
        is_mixture: Whether several datasets are read.

    Raises:
        BadArgumentError: The argument is out of range, or is given for a mixture.
    """
    if buckets is None:
        return 0
    if is_mixture:
        raise BadArgumentError(
            f"buckets is {buckets} for a mixture, but buckets sort the samples of a single "
            "dataset; leave buckets out, or read one dataset",
            field="buckets",
        )
    return whole("buckets", buckets, low=LEAST_BUCKETS, high=MOST_BUCKETS + 1)
