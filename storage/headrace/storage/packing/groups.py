"""Cut documents into groups, stretches of neighbours that are packed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.storage.packing.pointer import packing_damage

MAX_GROUP_SAMPLES: Final = 1 << 14
MAX_GROUP_BYTES: Final = 64 << 20
"""The size of a group's documents in memory. Larger groups do not pack better (docs/lengths.md)."""

GROUP_DTYPE: Final = np.dtype(
    [("sample_count", "<u4"), ("item_bytes", "<u4"), ("raw_bytes", "<u8"), ("hash", "<u8")]
)
_NARROW: Final = np.dtype("<u2")
_WIDE: Final = np.dtype("<u4")
_MOST_RAW_BYTES: Final = 1 << 42


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The documents of one group.

    Attributes:
        lengths: ``(documents,) int64``: the number of elements of each.
        raw_bytes: The size of all their columns in memory, in bytes.
    """

    lengths: NDArray[np.int64]
    raw_bytes: int


def grouped(
    parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> Iterator[Group]:
    """Cut documents into groups, as they arrive.

    Args:
        parts: Lengths and bytes in memory of documents that follow one another.
    """
    lengths = raw_bytes = np.empty(0, np.int64)
    for more_lengths, more_bytes in parts:
        lengths = np.concatenate([lengths, more_lengths])
        raw_bytes = np.concatenate([raw_bytes, more_bytes])
        while (count := _first_group(raw_bytes)) < len(lengths):
            yield Group(lengths[:count], int(raw_bytes[:count].sum()))
            lengths, raw_bytes = lengths[count:], raw_bytes[count:]
    if len(lengths):
        yield Group(lengths, int(raw_bytes.sum()))


def _first_group(raw_bytes: NDArray[np.int64]) -> int:
    """Return the number of documents of the first group: as many as fit, and at least one."""
    ends = np.cumsum(raw_bytes[: MAX_GROUP_SAMPLES + 1])
    fitting = int(np.searchsorted(ends, MAX_GROUP_BYTES, side="right"))
    return min(max(fitting, 1), MAX_GROUP_SAMPLES)


def encode_page(lengths: NDArray[np.int64]) -> tuple[bytes, int]:
    """Return the lengths of a group in stored form, and the bytes per length."""
    dtype = _NARROW if int(lengths.max(initial=0)) <= np.iinfo(_NARROW).max else _WIDE
    return lengths.astype(dtype).tobytes(), dtype.itemsize


def decode_page(content: bytes, row: np.void, *, place: str) -> NDArray[np.int64]:
    """Return the lengths of a group, verified.

    Args:
        content: The stored bytes.
        row: A row of the table of groups.
        place: Their file, for the error.

    Raises:
        ManifestCorruptError: The lengths are damaged.
    """
    found = xxhash.xxh3_64_intdigest(content)
    if found != int(row["hash"]):
        raise packing_damage(place, f"hash {found:016x} found, {int(row['hash']):016x} expected")
    dtype = _NARROW if int(row["item_bytes"]) == _NARROW.itemsize else _WIDE
    return np.frombuffer(content, dtype).astype(np.int64)


def group_row(group: Group, page: bytes, item_bytes: int) -> tuple[int, int, int, int]:
    """Return the row of the table of groups that describes a page."""
    return len(group.lengths), item_bytes, group.raw_bytes, xxhash.xxh3_64_intdigest(page)


def decode_groups(content: bytes, *, sample_count: int, place: str) -> NDArray[np.void]:
    """Return the table of groups, ``(groups,)`` of `GROUP_DTYPE`.

    Raises:
        ManifestCorruptError: The table is invalid.
    """
    if len(content) % GROUP_DTYPE.itemsize:
        raise packing_damage(place, f"{len(content)} bytes are not a whole number of rows")
    table = np.frombuffer(content, GROUP_DTYPE)
    counts, items = table["sample_count"], table["item_bytes"]
    is_right = (
        np.all((counts >= 1) & (counts <= MAX_GROUP_SAMPLES))
        and np.isin(items, (_NARROW.itemsize, _WIDE.itemsize)).all()
        and np.all(table["raw_bytes"] < _MOST_RAW_BYTES)
        and int(counts.sum(dtype=np.int64)) == sample_count
    )
    if not is_right:
        raise packing_damage(place, f"invalid groups, or not of {sample_count} samples")
    return table


def page_edges(table: NDArray[np.void]) -> NDArray[np.int64]:
    """Return where the page of each group starts, and the last ends, ``(groups + 1,) int64``."""
    edges = np.zeros(len(table) + 1, np.int64)
    sizes = table["sample_count"].astype(np.int64) * table["item_bytes"]
    np.cumsum(sizes, out=edges[1:])
    return edges
