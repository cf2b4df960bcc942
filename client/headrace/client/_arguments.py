"""Refuse arguments of a dataset that no server could make sense of, before anything travels."""

from __future__ import annotations

from headrace.errors import BadArgumentError
from headrace.order import EndMode


def end_mode(name: str) -> EndMode:
    """Return what becomes of an incomplete last batch.

    Raises:
        BadArgumentError: There is no such mode.
    """
    try:
        return EndMode(name)
    except ValueError:
        modes = ", ".join(mode.value for mode in EndMode)
        raise BadArgumentError(f"end is {name!r}; wanted one of {modes}", field="end") from None


def check_max_batch_bytes(value: int) -> None:
    """Refuse a bound that no batch could keep.

    Raises:
        BadArgumentError: It is one.
    """
    if value < 1:
        raise BadArgumentError(f"max_batch_bytes is {value}; wanted >= 1", field="max_batch_bytes")


def check_sizes(
    batch_size: int | None, global_batch_size: int | None, epochs: int | None, prefetch_bytes: int
) -> None:
    """Refuse sizes out of range.

    Raises:
        BadArgumentError: One is, or both batch sizes are given; names the argument.
    """
    if batch_size is not None and global_batch_size is not None:
        raise BadArgumentError(
            f"batch_size={batch_size} and global_batch_size={global_batch_size}: give one of them",
            field="batch_size",
        )
    limits = (
        ("batch_size", batch_size, 1),
        ("global_batch_size", global_batch_size, 1),
        ("epochs", epochs, 0),
        ("prefetch_bytes", prefetch_bytes, 0),
    )
    for field, value, least in limits:
        if value is not None and value < least:
            raise BadArgumentError(f"{field} is {value}; wanted >= {least}", field=field)
