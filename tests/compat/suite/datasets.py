"""What MosaicML's tests import from `tests.common.datasets`, which their archive leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class SequenceDataset:
    """Samples of an id of six digits, and three times its number."""

    def __init__(self, size: int = 100, *, offset: int = 0) -> None:
        self.column_names, self.column_encodings = ["id", "sample"], ["str", "int"]
        self.column_sizes = [None, 8]
        self._size, self._offset, self._at = size, offset, 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self._size:
            raise IndexError(index)
        return {"id": f"{index + self._offset:06}", "sample": 3 * index + self._offset}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._at >= self._size:
            raise StopIteration
        self._at += 1
        return self[self._at - 1]

    def get_sample_in_bytes(self, index: int) -> dict[str, bytes]:
        """Return a sample's values as their bytes."""
        sample = self[index]
        return {"id": sample["id"].encode(), "sample": np.int64(sample["sample"]).tobytes()}


class NumberAndSayDataset:
    """Random numbers, and their digits in words: the same for a seed."""

    def __init__(self, size: int = 100, seed: int = 987) -> None:
        self.column_names, self.column_encodings = ["number", "words"], ["int", "str"]
        self.column_sizes = [8, None]
        self._size, self._at, self.seed = size, 0, seed

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._at >= self._size:
            raise StopIteration
        self._at += 1
        number = int(self._random.integers(-(10**8), 10**8))
        sign = "negative " if number < 0 else ""
        words = " ".join(_DIGITS[int(digit)] for digit in str(abs(number)))
        return {"number": number, "words": sign + words}

    @property
    def seed(self) -> int:
        """The seed; setting it starts again."""
        return self._seed

    @seed.setter
    def seed(self, value: int) -> None:
        self._seed, self._at = value, 0
        self._random = np.random.default_rng(value)
