"""Petastorm's datasets for TensorFlow, from a reader."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

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
            yield tuple(arrays.values())

    signature = tuple(
        tf.TensorSpec((None,), tf.string)
        if value.dtype == object
        else tf.TensorSpec((None, *value.shape[1:]), value.dtype)
        for value in first.values()
    )
    view = namedtuple("inferred_schema_view", first)  # type: ignore[misc] # noqa: PYI024
    dataset = tf.data.Dataset.from_generator(values, output_signature=signature)
    named = dataset.map(view)
    return named.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)
