"""Read a part of a dataset, up to a limit in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.cli.show.python_values import python_value
from headrace.page.data.library import Library
from headrace.page.data.values import Column
from headrace.storage import Filter, OpenDataset

MAX_BYTES: Final = 64 << 20
_MAX_BLOCKS: Final = 256
"""Each takes 0.5 ms to read and check, and a view should be ready within 200 ms."""
_BINS: Final = 32
_MAX_VALUES: Final = 32
_MAX_CHARACTERS: Final = 80
_ORDERED: Final = 1 << 16
"""The maximum number of values whose quantiles are computed, which takes 5 ms."""
_WHOLE: Final = 1 << 52
"""Whole numbers are exact up to here, and their distances."""

_compute: Any = pc


@dataclass(frozen=True, slots=True)
class Part:
    """Some blocks of a dataset.

    Attributes:
        blocks: Their ordinals, ascending.
        of: The number of blocks in the dataset.
        raw_bytes: Their size in memory.
    """

    blocks: tuple[int, ...]
    of: int
    raw_bytes: int

    @property
    def is_all(self) -> bool:
        """Return whether these are all blocks."""
        return len(self.blocks) == self.of


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram."""

    label: str
    count: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """The frequencies of values.

    Attributes:
        bars: The bars, by value or by range of values.
        of: What was counted, in words.
        samples: The number of samples that were read and that the filter keeps.
        nulls: Samples without a value.
        zeros: Samples whose value is 0 or empty.
        others: Values without a bar.
        ends: The lowest and the highest value of a histogram by ranges.
        middle: Its quantiles in words.
    """

    bars: tuple[Bar, ...]
    of: str
    samples: int
    nulls: int
    zeros: int
    others: int
    ends: tuple[str, str] | None = None
    middle: str = ""


def spread_part(dataset: OpenDataset, max_bytes: int = MAX_BYTES) -> Part:
    """Return evenly spaced blocks of at most ``max_bytes`` in total, but at least one."""
    count = dataset.block_count
    if not count:
        return Part((), 0, 0)
    mean = max(dataset.raw_bytes, dataset.stored_bytes, 1) / count
    wanted = min(max(int(max_bytes // mean), 1), count, _MAX_BLOCKS)
    chosen = np.unique(np.linspace(0, count - 1, wanted).astype(np.int64))
    ends = np.cumsum(dataset.block_raw_bytes(chosen))
    # Blocks differ in size, so drop some evenly until the rest fit.
    while len(chosen) > 1 and ends[-1] > max_bytes:
        chosen = chosen[np.linspace(0, len(chosen) - 1, len(chosen) * 3 // 4).astype(np.int64)]
        ends = np.cumsum(dataset.block_raw_bytes(chosen))
    return Part(tuple(chosen.tolist()), count, int(ends[-1]))


def matching(
    library: Library, dataset: OpenDataset, filtered: Filter, *, first: int, max_count: int
) -> tuple[list[int], int]:
    """Find samples that a filter keeps, reading at most `MAX_BYTES` from a given sample on.

    Returns:
        At most ``max_count`` ids, and the sample at which the search ended.
    """
    if first >= dataset.sample_count:
        return [], dataset.sample_count
    block = int(dataset.locate(np.array([first], np.int64))[0][0])
    found: list[int] = []
    left = MAX_BYTES
    while block < dataset.block_count:
        start, end = dataset.block_sample_range(block)
        left -= int(dataset.block_raw_bytes(np.array([block], np.int64))[0])
        if left < 0 and start > first:
            return found, start
        kept = np.flatnonzero(filtered.mask(library.block(dataset, block))) + start
        kept = kept[kept >= first]
        found += kept[: max_count - len(found)].tolist()
        if len(found) == max_count:
            return found, found[-1] + 1
        first, block = end, block + 1
    return found, dataset.sample_count


def histogram(
    library: Library, dataset: OpenDataset, part: Part, column: Column, kept: Filter | None
) -> Histogram:
    """Count the values of a column in a part of a dataset."""
    arrays = list(_arrays(library, dataset, part, column, kept))
    if not arrays:
        return Histogram((), "no samples", 0, 0, 0, 0)
    # In chunks, since one array cannot contain more than 2 GiB of text.
    values: Any = pa.chunked_array(arrays)
    samples, nulls = len(values), values.null_count
    values = values.drop_null()
    if column.shape:
        return _by_range(_flat(arrays, column), "all elements", samples, nulls)
    of, counted = _countable(values, column)
    if isinstance(counted, np.ndarray):
        return _by_range(counted, of, samples, nulls)
    return _by_value(counted, column, of, samples, nulls)


def _countable(values: Any, column: Column) -> tuple[str, Any]:
    """Return what is counted, and the values: numbers as an array, others as Arrow values."""
    kind = values.type
    found: tuple[str, Any] = ("values", None)
    if column.classes is not None or pa.types.is_boolean(kind):
        found = "values", values
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        found = "values", _numbers(values, column.form)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        starts = _compute.utf8_slice_codeunits(values, 0, _MAX_CHARACTERS)
        found = f"values, by their first {_MAX_CHARACTERS} characters", starts
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        found = "sizes in bytes", _numbers(_compute.binary_length(values))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = "lengths", _numbers(_compute.list_value_length(values))
    elif pa.types.is_struct(kind):
        found = "values", pa.array([str(python_value(each)) for each in values])
    else:
        found = "values", _compute.cast(values, pa.string())
    return found


def _arrays(
    library: Library, dataset: OpenDataset, part: Part, column: Column, kept: Filter | None
) -> Iterator[Any]:
    for block in part.blocks:
        batch = library.block(dataset, block)
        values = batch.column(column.name)
        yield values if kept is None else values.filter(pa.array(kept.mask(batch)))


def _numbers(values: Any, form: str = "") -> NDArray[np.float64]:
    found = values.to_numpy(zero_copy_only=False)
    if form == "bfloat16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(found, np.float64)


def _flat(arrays: list[Any], column: Column) -> NDArray[np.float64]:
    parts = []
    for array in arrays:
        flat = array.storage if hasattr(array, "storage") else array
        for _ in column.shape if flat is array else (0,):
            flat = flat.flatten()
        parts.append(_numbers(flat.drop_null(), column.form))
    return np.concatenate(parts)


def _by_value(values: Any, column: Column, of: str, samples: int, nulls: int) -> Histogram:
    counted = _compute.value_counts(values)
    counts = counted.field("counts").to_numpy()
    order = np.argsort(-counts, kind="stable")
    shown = order[:_MAX_VALUES]
    keys = counted.field("values").take(pa.array(shown)).to_pylist()
    bars = tuple(
        Bar(_named(key, column), int(counts[at])) for key, at in zip(keys, shown, strict=True)
    )
    zeros = sum(bar.count for key, bar in zip(keys, bars, strict=True) if not key)
    return Histogram(bars, of, samples, nulls, zeros, int(counts[order[_MAX_VALUES:]].sum()))


def _named(key: object, column: Column) -> str:
    names = column.classes
    if names is not None and isinstance(key, int) and 0 <= key < len(names):
        return f"{key} {names[key][:_MAX_CHARACTERS]}"
    return str(key) or "(empty)"


def _by_range(numbers: NDArray[np.float64], of: str, samples: int, nulls: int) -> Histogram:
    finite = numbers[np.isfinite(numbers)]
    zeros, others = int((numbers == 0).sum()), len(numbers) - len(finite)
    if not len(finite):
        return Histogram((), of, samples, nulls, zeros, others)
    low, high = float(finite.min()), float(finite.max())
    ends = f"{low:.6g}", f"{high:.6g}"
    bins: Any = _BINS if low < high else 1
    is_whole = high - low < _WHOLE and not (finite % 1).any()
    if is_whole:
        # Bins that hold as many whole numbers each: others would show gaps that are not there.
        width = -(-(high - low + 1) // _BINS)
        bins = (np.arange(low, high + width + 1, width) - 0.5) / 2
    counts, edges = np.histogram(finite / 2, bins=bins, range=(low / 2, high / 2))
    bars = tuple(
        Bar(_span(2 * start, 2 * end, high, is_whole=is_whole), int(count))
        for start, end, count in zip(edges, edges[1:], counts, strict=False)
    )
    ordered = np.sort(finite[:: -(-len(finite) // _ORDERED)])
    first, half, last = (ordered[int(len(ordered) * share)] for share in (0.05, 0.5, 0.95))
    middle = f"The median is about {half:.4g}, and 90 % are from {first:.4g} to {last:.4g}."
    return Histogram(bars, of, samples, nulls, zeros, others, ends, middle)


def _span(start: float, end: float, most: float, *, is_whole: bool) -> str:
    if is_whole:
        start, end = start + 0.5, min(end - 0.5, most)
        return f"{start:.0f} to {end:.0f}" if start < end else f"{start:.0f}"
    return f"{start:.4g} to {end:.4g}" if start < most else f"{most:.6g}"
