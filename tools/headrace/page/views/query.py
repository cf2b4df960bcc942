"""Parse the path and the query of a request: a version, a column, a filter, sample ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.order import Order, OrderSpec
from headrace.page.data.values import Column
from headrace.page.runs.orders import order_of
from headrace.page.site import ViewRequest
from headrace.storage import Filter, OpenDataset, make_filter

_FINGERPRINT: Final = re.compile("[0-9a-f]{32}")
_SPAN: Final = re.compile(r"\s*(\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*")
MAX_IDS: Final = 500
_MAX_FILTER: Final = 4096


@contextmanager
def open_requested(request: ViewRequest) -> Iterator[OpenDataset]:
    """Yield the dataset of the path, in the version ``v`` of the query.

    Raises:
        BadArgumentError: The version is not 32 hexadecimal digits.
        HeadraceError: It cannot be opened.
    """
    name, fingerprint = request.path["name"], request.query["v"]
    if fingerprint and not _FINGERPRINT.fullmatch(fingerprint):
        raise BadArgumentError("v is not a version; expected 32 hexadecimal digits", field="v")
    with request.site.library.opened(request.caller, name, fingerprint) as opened:
        yield opened


def column_at(request: ViewRequest, columns: Sequence[Column]) -> tuple[int, Column]:
    """Return the number and the column of the path.

    Raises:
        ColumnNotFoundError: There is no such column.
    """
    text = request.path["number"]
    if not text.isdecimal() or len(text) > 6 or int(text) >= len(columns):  # noqa: PLR2004 - digits
        raise ColumnNotFoundError(f"there is no column {text[:20]}; there are {len(columns)}")
    return int(text), columns[int(text)]


def filter_of(request: ViewRequest, opened: OpenDataset) -> Filter | None:
    """Return the filter of the query; None without one.

    Raises:
        BadArgumentError: The filter cannot be parsed.
    """
    text = request.query["where"].strip()
    if len(text) > _MAX_FILTER:
        raise BadArgumentError(f"the filter has more than {_MAX_FILTER} characters", field="where")
    return make_filter(text, opened.schema) if text else None


def sample_ids_of(text: str) -> list[int]:
    """Parse at most `MAX_IDS` ids such as ``0,7,100-110``, including both ends of ranges.

    Raises:
        BadArgumentError: The text cannot be parsed, or has too many ids.
    """
    ids: list[int] = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part)
        if match is None:
            raise BadArgumentError(
                f"{part[:40]!r} is neither an id nor a range of ids, such as 7 or 100-110",
                field="ids",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        ids += range(first, min(last, first + MAX_IDS) + 1)
        if len(ids) > MAX_IDS:
            raise BadArgumentError(f"a page shows at most {MAX_IDS} samples", field="ids")
    return ids


def cached_order(request: ViewRequest, dataset: OpenDataset, spec: OrderSpec) -> Order:
    """Return an order from the cache, or make it."""
    return request.site.orders.get((dataset.fingerprint, spec), lambda: order_of(dataset, spec))
