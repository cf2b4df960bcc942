"""Hand a batch's columns to NumPy or JAX. JAX is imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.client.batch.columns import BytesColumn, RaggedColumn, StringColumn
from headrace.errors import BadArgumentError, ConfigurationError

_NARROW = {
    torch.int64: torch.int32,
    torch.uint64: torch.uint32,
    torch.float64: torch.float32,
}

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
        BadArgumentError: JAX is set to 32 bits, which would change a number beyond its digits.
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
            if is_narrow and value.dtype in _NARROW:
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
    # JAX would silently cut off the upper half of an integer, and make a large float infinite.
    narrow = _NARROW[value.dtype]
    limits = torch.finfo(narrow) if narrow.is_floating_point else torch.iinfo(narrow)
    if value.dtype is torch.uint64:
        value = value.view(torch.int64)  # torch compares no uint64; what is negative here is large
    elif value.dtype is torch.float64:
        value = value[value.isfinite()]
    if value.numel() and (value.min() < limits.min or value.max() > limits.max):
        raise BadArgumentError(
            f"column {name!r} has numbers that need 64 bits, but JAX uses 32; set jax_enable_x64, "
            "or leave the column out with columns=",
            field="columns",
        )
