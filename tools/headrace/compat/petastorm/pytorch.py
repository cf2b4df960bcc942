"""Petastorm's loaders for PyTorch: batches of tensors from a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.compat.petastorm.reader import Reader
from headrace.compat.petastorm.transform import Arrays

_TORCH_TYPES = {np.dtype("u2"): np.int32, np.dtype("u4"): np.int64, np.dtype("?"): np.uint8}
"""Types that Petastorm widens for torch."""


class DataLoader:
    """Batches of tensors; strings, bytes and rows of different lengths are lists.

    A loop runs over all epochs of the reader; the next one starts with the first again.
    """

    def __init__(
        self,
        reader: Reader,
        batch_size: int = 1,
        collate_fn: Callable[[list[dict[str, Any]]], Any] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        """Describe the batches.

        Args:
            reader: What to read.
            batch_size: Samples of a batch.
            collate_fn: Makes a batch of samples; None for a tensor for each column.
            shuffling_queue_capacity: More than 0 to shuffle, even if the reader does not. How far
                is headrace's `Order`.
        """
        self.reader = reader
        self.batch_size = batch_size
        self.collate_fn = collate_fn
        self.shuffling_queue_capacity = shuffling_queue_capacity

    def __iter__(self) -> Iterator[Any]:
        """Yield batches.

        Raises:
            HeadraceError: A batch cannot be read.
        """
        shuffle = bool(self.shuffling_queue_capacity)
        for arrays in self.reader.batches(self.batch_size, shuffle=shuffle):
            yield self._batch_of({name: _sanitized(value) for name, value in arrays.items()})

    def _batch_of(self, arrays: Arrays) -> Any:
        if self.collate_fn is None:
            return {name: _tensor(value) for name, value in arrays.items()}
        rows = zip(*arrays.values(), strict=True)
        return self.collate_fn([dict(zip(arrays, row, strict=True)) for row in rows])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.reader.stop()


class BatchedDataLoader(DataLoader):
    """The same, with a function that makes the tensors."""

    def __init__(
        self,
        reader: Reader,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        """Describe the batches.

        Args:
            reader: What to read.
            batch_size: Samples of a batch.
            transform_fn: Makes a tensor of a column's array; None for ``torch.as_tensor``.
            shuffling_queue_capacity: See `DataLoader`.
        """
        super().__init__(reader, batch_size, None, shuffling_queue_capacity)
        self.transform_fn = transform_fn or _tensor

    def _batch_of(self, arrays: Arrays) -> Any:
        return {name: self.transform_fn(value) for name, value in arrays.items()}


def _sanitized(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(_TORCH_TYPES.get(values.dtype, values.dtype), copy=False)


def _tensor(values: NDArray[Any]) -> Any:
    if values.dtype != object:
        return torch.as_tensor(values)
    return [torch.as_tensor(row) if isinstance(row, np.ndarray) else row for row in values]
