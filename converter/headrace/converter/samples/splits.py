"""Assign each sample to a split.

With fractions, a sample's split depends only on the seed, its partition and its place in it, so a
retried task gives the same result. With a column, the sample names its split.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import BadArgumentError

Splits: TypeAlias = Mapping[str, float] | str

SPLIT_NAMES = frozenset(
    ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
)
"""The names of folders of splits, in lower case."""

MAX_SPLITS = 64  # arbitrary: each keeps a shard open in every task
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=-]{0,99}")
_SLACK = 1e-6  # 0.8 + 0.1 + 0.1 is not 1 in floating point


@dataclass(frozen=True, slots=True)
class ByFraction:
    """Splits by random fractions. Picklable.

    Attributes:
        names: The names of the splits.
        ends: The end of each in ``[0, 1]``; the last one is 1.
        seed: Chooses the samples.
    """

    names: tuple[str, ...]
    ends: tuple[float, ...]
    seed: int

    def parts(
        self, batch: pa.RecordBatch, *, partition: int, first_sample: int
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the samples of each split, in their order."""
        ordinals = np.arange(first_sample, first_sample + batch.num_rows, dtype=np.uint64)
        draws = _uniform(ordinals, seed=self.seed, partition=partition)
        chosen = np.searchsorted(np.array(self.ends[:-1]), draws, side="right")
        for split, name in enumerate(self.names):
            places = np.flatnonzero(chosen == split)
            if len(places):
                yield name, _taken(batch, places)


@dataclass(frozen=True, slots=True)
class ByColumn:
    """Splits named by a column, which is not stored itself. Picklable.

    Attributes:
        column: The name of the column.
    """

    column: str

    def parts(
        self, batch: pa.RecordBatch, *, partition: int, first_sample: int
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the samples of each split, in their order.

        Raises:
            BadArgumentError: A sample has no split, or one that cannot be a folder's name.
        """
        at = batch.schema.get_field_index(self.column)
        texts = pc.cast(batch.column(at), pa.string())
        if texts.null_count:
            place = int(np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))[0])
            raise BadArgumentError(
                f"column {self.column!r} names the split of each sample, but is null in sample "
                f"{first_sample + place} of partition {partition}; filter or fill it",
                field="splits",
            )
        rest = batch.drop_columns([self.column])
        codes = texts.dictionary_encode()
        indices = codes.indices.to_numpy()
        for code, name in enumerate(map(str, codes.dictionary.to_pylist())):
            check_split_name(name)
            yield name, _taken(rest, np.flatnonzero(indices == code))


Splitter: TypeAlias = ByFraction | ByColumn


def make_splitter(splits: Splits, *, seed: int) -> Splitter:
    """Return an object that assigns samples to splits.

    Args:
        splits: Fractions by name, or the name of a column.
        seed: The seed for fractions.

    Raises:
        BadArgumentError: The fractions do not add up to 1, or a name cannot be that of a folder.
    """
    if isinstance(splits, str):
        return ByColumn(splits)
    for name in splits:
        check_split_name(name)
    fractions = [float(fraction) for fraction in splits.values()]
    fit = all(0 < fraction <= 1 for fraction in fractions)
    if not fit or abs(math.fsum(fractions) - 1) > _SLACK or len(fractions) > MAX_SPLITS:
        raise BadArgumentError(
            f"splits is {dict(splits)}, expected 1 to {MAX_SPLITS} fractions above 0 with the "
            "sum 1",
            field="splits",
        )
    ends = np.cumsum(fractions)
    ends[-1] = 1.0
    return ByFraction(tuple(splits), tuple(ends.tolist()), seed)


def check_split_name(name: str) -> None:
    """Refuse a name that cannot be that of a folder.

    Raises:
        BadArgumentError: It has characters other than letters, digits, ``_``, ``.``, ``=``, ``-``.
    """
    if not _NAME.fullmatch(name):
        raise BadArgumentError(
            f"{name!r} cannot be the name of a split; expected 1 to 100 letters, digits, '_', '.', "
            "'=' or '-', starting with a letter or digit, since its dataset is a folder of that "
            "name",
            field="splits",
        )


def _taken(batch: pa.RecordBatch, places: NDArray[np.int64]) -> pa.RecordBatch:
    if len(places) == batch.num_rows:
        return batch
    return batch.take(places)


def _uniform(ordinals: NDArray[np.uint64], *, seed: int, partition: int) -> NDArray[np.float64]:
    """Return numbers in ``[0, 1)`` that depend only on seed, partition and ordinal.

    Source: SplitMix64 of Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014.
    """
    key = np.array([seed % 2**64, partition], np.uint64)
    start = _mixed(_mixed(key[:1]) + key[1:])
    mixed = _mixed(_mixed(start + ordinals))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
