"""Petastorm's datasets for TensorFlow, from a reader."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.compat.petastorm.reader import READ_ROWS, Reader
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    import tensorflow as tf


def make_petastorm_dataset(reader: Reader) -> tf.data.Dataset:
    """Return a dataset of namedtuples of tensors, one for some rows of the reader.

    Raises:
        ConfigurationError: TensorFlow is not installed.
        HeadraceError: The first rows, which tell the types, cannot be read.
    """
    return tf_dataset(reader, READ_ROWS, shuffle=False, prefetch=None)


def tf_dataset(
    reader: Reader, batch_size: int, *, shuffle: bool, prefetch: int | None
) -> tf.data.Dataset:
    """Return a dataset of batches, as namedtuples of tensors; the first is read at once.

    Args:
        reader: What to read.
        batch_size: Samples of a batch.
        shuffle: Shuffle even if the reader does not.
        prefetch: Batches that TensorFlow reads ahead; None lets it choose.

    Raises:
        ConfigurationError: TensorFlow is not installed.
        ValueError: A column has arrays of differing length. A null among truth values is one too,
            which a loop gets as an error of TensorFlow's.
        HeadraceError: The first batch cannot be read.
    """
    try:
        import tensorflow as tf  # noqa: PLC0415 - not every trainer has it
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "TensorFlow is not installed here, which make_tf_dataset needs: pip install tensorflow"
        ) from error
    batches = reader.batches(batch_size, shuffle=shuffle)
    first = next(batches)
    # The first loop goes on after the batch that told the types.
    started = [chain([first], batches)]

    def values() -> Iterator[Any]:
        found = started.pop() if started else reader.batches(batch_size, shuffle=shuffle)
        for arrays in found:
            yield tuple(_without_nulls(name, value) for name, value in arrays.items())

    signature = tuple(_spec(tf, name, value) for name, value in first.items())
    view = namedtuple("inferred_schema_view", first)  # type: ignore[misc] # noqa: PYI024
    dataset = tf.data.Dataset.from_generator(values, output_signature=signature)
    named = dataset.map(view)
    return named.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)


def _spec(tf: Any, name: str, value: NDArray[Any]) -> Any:
    if value.dtype != object:
        return tf.TensorSpec((None, *value.shape[1:]), value.dtype)
    item = next((item for item in value if item is not None), "")
    if isinstance(item, np.ndarray):
        raise ValueError(  # noqa: TRY004 - as for all that a compat interface refuses
            f"column {name!r} has arrays of differing length, and Petastorm's datasets for "
            "TensorFlow have none; leave it out with schema_fields=, or let transform_spec= make "
            "them of one length"
        )
    return tf.TensorSpec((None,), tf.bool if isinstance(item, bool) else tf.string)


def _without_nulls(name: str, value: NDArray[Any]) -> NDArray[Any]:
    """Return an array that TensorFlow can take: texts and bytes that are null become empty."""
    if value.dtype != object:
        return value
    if any(isinstance(item, bool) for item in value):
        if None in value.tolist():
            raise ValueError(
                f"column {name!r} has a null among its truth values, which TensorFlow cannot say; "
                "leave it out with schema_fields=, or let transform_spec= fill it"
            )
        return value.astype(np.bool_)
    return np.array(["" if item is None else item for item in value], object)
