"""Read the choices of a query: a version, a column, a filter, samples, an order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.order import Order, OrderSpec
from headrace.page.data.values import Column
from headrace.page.runs.orders import order_of
from headrace.page.site import Ask
from headrace.storage import Filter, OpenDataset, make_filter

_FINGERPRINT: Final = re.compile("[0-9a-f]{32}")
_SPAN: Final = re.compile(r"\s*(\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*")
MOST_IDS: Final = 500
_MOST_FILTER: Final = 4096


@contextmanager
def chosen(ask: Ask) -> Iterator[tuple[str, OpenDataset]]:
    """Yield the dataset that the path names, in the version ``v`` of the query.

    Raises:
        BadArgumentError: The version is not 32 hexadecimal digits.
        HeadraceError: It cannot be opened.
    """
    name, fingerprint = ask.path["name"], ask.query["v"]
    if fingerprint and not _FINGERPRINT.fullmatch(fingerprint):
        raise BadArgumentError("v is not a version; expected 32 hexadecimal digits", field="v")
    with ask.site.library.opened(ask.caller, name, fingerprint) as opened:
        yield name, opened


def column_at(ask: Ask, columns: Sequence[Column]) -> tuple[int, Column]:
    """Return the column that the path names by its number.

    Raises:
        ColumnNotFoundError: There is no such column.
    """
    text = ask.path["number"]
    if not text.isdecimal() or len(text) > 6 or int(text) >= len(columns):  # noqa: PLR2004 - digits
        raise ColumnNotFoundError(f"there is no column {text[:20]}; there are {len(columns)}")
    return int(text), columns[int(text)]


def filter_of(ask: Ask, opened: OpenDataset) -> Filter | None:
    """Return the filter of the query; None without one.

    Raises:
        BadArgumentError: It cannot be read.
    """
    text = ask.query["where"].strip()
    if len(text) > _MOST_FILTER:
        raise BadArgumentError(f"the filter has more than {_MOST_FILTER} characters", field="where")
    return make_filter(text, opened.schema) if text else None


def sample_ids_of(text: str) -> list[int]:
    """Parse ``0,7,100-110``, including both ends of ranges, at most `MOST_IDS` ids.

    Raises:
        BadArgumentError: It cannot be read.
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
        ids += range(first, min(last, first + MOST_IDS) + 1)
        if len(ids) > MOST_IDS:
            raise BadArgumentError(f"a page shows at most {MOST_IDS} samples", field="ids")
    return ids


def kept_order(ask: Ask, dataset: OpenDataset, spec: OrderSpec) -> Order:
    """Return an order, kept so that any step of a long run is available at once."""
    return ask.site.orders.of((dataset.fingerprint, spec), lambda: order_of(dataset, spec))
