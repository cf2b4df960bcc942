"""Samples of a batch, one by one, with the values that `stored.rows_of` gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from headrace.client import Batch
from headrace.compat.streaming.stored import Sample, shaped

_DATA, _SHAPE, _DTYPE, _VALID = ".data", ".shape", ".dtype", ".valid"


def samples_of(batch: Batch) -> Iterator[Sample]:
    """Yield the samples of a batch: NumPy's numbers and arrays, `str`, `bytes`, None for null."""
    columns = _columns(batch)
    for at in range(batch.sample_count):
        yield {name: rows[at] for name, rows in columns.items()}


def _columns(batch: Batch) -> dict[str, list[Any]]:
    arrays = batch.to_numpy()
    columns: dict[str, list[Any]] = {}
    for name, value in batch.items():
        if name.endswith(_VALID) and name.removesuffix(_VALID) in batch:
            continue
        is_bits = isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16
        rows = list(value) if is_bits else list(arrays[name])
        valid = arrays.get(name + _VALID)
        if valid is not None:
            rows = [row if kept else None for row, kept in zip(rows, valid, strict=True)]
        columns[name] = rows
    for name in [name.removesuffix(_DATA) for name in columns if name.endswith(_DATA)]:
        if name + _SHAPE in columns:
            parts = [columns.pop(name + end) for end in (_DATA, _SHAPE)]
            if name + _DTYPE in columns:
                parts.append(columns.pop(name + _DTYPE))
            columns[name] = [
                None if part[1] is None else shaped(*part) for part in zip(*parts, strict=True)
            ]
    return columns
