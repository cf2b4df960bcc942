"""Hand a batch's columns to NumPy or JAX. JAX is imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.client.batch.columns import BytesColumn, RaggedColumn, StringColumn
from headrace.errors import BadArgumentError, ConfigurationError

Value = torch.Tensor | BytesColumn | StringColumn | RaggedColumn


def numpy_arrays(values: Mapping[str, Value]) -> dict[str, NDArray[Any]]:
    """Return columns as arrays: tensors share their memory, the rest become object arrays.

    NumPy has no bfloat16, so its bits are returned as uint16.
    """
    return {
        name: _numbers(value) if isinstance(value, torch.Tensor) else _objects(value)
        for name, value in values.items()
    }


def jax_arrays(values: Mapping[str, Value]) -> dict[str, Any]:
    """Return columns as JAX arrays that share the tensors' memory; the rest stays as it is.

    Raises:
        ConfigurationError: JAX is not installed.
        BadArgumentError: JAX is set to 32 bits, which would change an integer.
    """
    try:
        import jax  # noqa: PLC0415 - not every trainer has it
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "to_jax needs JAX, which is not installed here: pip install jax"
        ) from error
    is_narrow = not jax.config.jax_enable_x64
    arrays: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            if is_narrow and value.dtype == torch.int64:
                _check_narrow(name, value)
            arrays[name] = jax.dlpack.from_dlpack(value)
        else:
            arrays[name] = value
    return arrays


def _numbers(value: torch.Tensor) -> NDArray[Any]:
    if value.dtype is torch.bfloat16:
        # NumPy has no bfloat16.
        return value.view(torch.int16).numpy(force=True).view(np.uint16)
    return value.numpy(force=True)


def _objects(column: BytesColumn | StringColumn | RaggedColumn) -> NDArray[np.object_]:
    objects = np.empty(len(column), np.object_)
    for index, item in enumerate(column):
        objects[index] = item.numpy(force=True) if isinstance(item, torch.Tensor) else item
    return objects


def _check_narrow(name: str, value: torch.Tensor) -> None:
    # JAX would silently cut off the upper half.
    limits = torch.iinfo(torch.int32)
    if value.numel() and (value.min() < limits.min or value.max() > limits.max):
        raise BadArgumentError(
            f"column {name!r} has integers that need 64 bits, but JAX uses 32; set jax_enable_x64, "
            "or leave the column out with columns=",
            field="columns",
        )
